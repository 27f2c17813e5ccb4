// A CUDA graph with conditional nodes, replayed ten times in the range `REPLAY`: a kernel (made in the range `head`), a
// WHILE node whose body runs five times (`while`), a kernel, and an IF node whose body runs in every second replay (`if`).
//
//     nvcc -arch=sm_90 -o conditional analysis/cuda-graphs/conditional.cu      (CUDA 13)

#include <cstdio>
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>

#define CHECK(call)                                                                   \
    do {                                                                              \
        cudaError_t error = (call);                                                   \
        if (error != cudaSuccess) {                                                   \
            printf("%s: %s\n", #call, cudaGetErrorString(error));                     \
            return 1;                                                                 \
        }                                                                             \
    } while (0)

__global__ void work(float *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * 1.0001f + 1.0f;
}

__global__ void refill(int *left, int value) { *left = value; }

__global__ void decide(cudaGraphConditionalHandle loop, int *left) { cudaGraphSetConditional(loop, --*left > 0); }

__global__ void decide_if(cudaGraphConditionalHandle branch, int *count) {
    cudaGraphSetConditional(branch, ++*count % 2);
}

// A node of one thread behind `before`, if there is one.
cudaError_t add_kernel(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *before, void *kernel,
                       void **arguments) {
    cudaKernelNodeParams params = {};
    params.func = kernel;
    params.gridDim = params.blockDim = dim3(1);
    params.kernelParams = arguments;
    return cudaGraphAddKernelNode(node, graph, before, before ? 1 : 0, &params);
}

// A conditional node behind `before`, and its empty body.
cudaError_t add_condition(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *before,
                          cudaGraphConditionalHandle handle, cudaGraphConditionalNodeType type, cudaGraph_t *body) {
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle;
    params.conditional.type = type;
    params.conditional.size = 1;
    cudaError_t error = cudaGraphAddNode(node, graph, before, nullptr, 1, &params);
    *body = params.conditional.phGraph_out[0];
    return error;
}

int main() {
    const int n = 1 << 20;
    float *x;
    int *left, *count, five = 5;
    cudaStream_t stream;
    CHECK(cudaMalloc(&x, n * sizeof(float)));
    CHECK(cudaMalloc(&left, sizeof(int)));
    CHECK(cudaMalloc(&count, sizeof(int)));
    CHECK(cudaMemset(x, 0, n * sizeof(float)));
    CHECK(cudaMemset(count, 0, sizeof(int)));
    CHECK(cudaStreamCreate(&stream));

    nvtxRangePushA("CAPTURE");
    cudaGraph_t graph, body;
    cudaGraphNode_t head, loop_node, test, branch_node;
    cudaGraphConditionalHandle loop, branch;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphConditionalHandleCreate(&loop, graph, 1, cudaGraphCondAssignDefault));
    CHECK(cudaGraphConditionalHandleCreate(&branch, graph, 0, cudaGraphCondAssignDefault));

    nvtxRangePushA("head");
    void *refill_arguments[] = {&left, &five};
    CHECK(add_kernel(&head, graph, nullptr, (void *)refill, refill_arguments));
    nvtxRangePop();

    nvtxRangePushA("while");
    CHECK(add_condition(&loop_node, graph, &head, loop, cudaGraphCondTypeWhile, &body));
    CHECK(cudaStreamBeginCaptureToGraph(stream, body, nullptr, nullptr, 0, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < 3; i++) work<<<n / 256, 256, 0, stream>>>(x, n);
    decide<<<1, 1, 0, stream>>>(loop, left);
    CHECK(cudaStreamEndCapture(stream, &body));
    nvtxRangePop();

    nvtxRangePushA("if");
    void *if_arguments[] = {&branch, &count};
    CHECK(add_kernel(&test, graph, &loop_node, (void *)decide_if, if_arguments));
    CHECK(add_condition(&branch_node, graph, &test, branch, cudaGraphCondTypeIf, &body));
    CHECK(cudaStreamBeginCaptureToGraph(stream, body, nullptr, nullptr, 0, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < 2; i++) work<<<n / 512, 512, 0, stream>>>(x, n);
    CHECK(cudaStreamEndCapture(stream, &body));
    nvtxRangePop();

    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    nvtxRangePop();

    nvtxRangePushA("REPLAY");
    for (int i = 0; i < 10; i++) CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaStreamSynchronize(stream));
    nvtxRangePop();
}
