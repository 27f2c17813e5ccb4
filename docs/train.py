import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(20):
    loss = model(torch.randn(8, 32, 64, device=device)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())  # .item() waits for the GPU
