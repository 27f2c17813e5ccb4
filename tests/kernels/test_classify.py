"""Kernel names to family, math unit, attention backend and cause."""

# ruff: noqa: E501 (names are data, and long)

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from nsysprof.errors import NsysprofError
from nsysprof.kernels import rules as kernel_rules
from nsysprof.kernels.classify import (
    FAMILIES,
    MATH_UNITS,
    Kinds,
    classify,
    function_name,
    load_rules,
    short_name,
)

REPORT = Path(__file__).parents[2] / "traces" / "run.sqlite"

TENSOR, FMA, UNKNOWN = "tensor core", "FP32 FMA", "unknown"

# Names as profilers printed them (nsys, torch.profiler, TensorFlow's and JAX's), some cut off where they were printed so.
KNOWN = [
    # PyTorch, elementwise kernels by functor
    ("void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<bool>, std::array<char *, (unsigned long)1>>(int, T2, T3)", "fill", UNKNOWN),
    ("void at::native::vectorized_elementwise_kernel<8, at::native::FillFunctor<c10::BFloat16>, std::array<char*, 1ul> >(int, at::native::FillFunctor<c10::BFloat16>, std::array<char*, 1ul>)", "fill", UNKNOWN),
    ("void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_out(c10::Scalar const&, c10::Scalar const&, c10::Scalar const&, at::Tensor&)::{lambda()#1}>", "fill", UNKNOWN),
    ("void at::native::vectorized_elementwise_kernel<(int)8, at::native::float16_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>>(int, T2, T3)", "copy", UNKNOWN),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul> >(int, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul>)", "copy", UNKNOWN),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16tofloat32_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >", "copy", UNKNOWN),
    ("void at::native::elementwise_kernel<(int)128, (int)4, void at::native::gpu_kernel_impl_nocast<at::native::float8_copy_kernel_cuda(at::Ten...", "copy", UNKNOWN),
    ("void at::native::elementwise_kernel<(int)128, (int)4, void at::native::gpu_kernel_impl<at::native::direct_copy_kernel_cuda(at::TensorIter...", "copy", UNKNOWN),
    ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]::operator ()() const::[lambda() (instance 7)]::operator ()() const::[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>, (int)4, TrivialOffsetCalculator<(int)1, unsigned int>, TrivialOffsetCalculator<(int)1, unsigned int>, at::native::memory::LoadWithCast<(int)1>, at::native::memory::StoreWithCast<(int)1>>(int, T1, T2, T4, T5, T6, T7)", "copy", UNKNOWN),
    ("void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)2>, at::native::<unnamed>::UnaryOpFunctor<float, (int)2, (int)1, (int)1>, at::native::Copy<float, float>>(T1, T2, T3...)", "copy", UNKNOWN),
    ("void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<at::native::<unnamed>::where_kernel_impl(at::TensorIterator &)::[lambda() (instance 1)]::operator ()() const::[lambda() (instance 11)]::operator ()() const::[lambda(bool, float, float) (instance 1)]>(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)", "mask", UNKNOWN),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::masked_fill_kernel(at::TensorIterator&, c10::Scalar const&)::{lambda()#1}::operator()() const::{lambda()#7}::operator()() const::{lambda(float, bool)#1}, at::detail::Array<char*, 3> >", "mask", UNKNOWN),
    ("void at::native::triu_tril_kernel<bool, int, (bool)0, (int)8, (bool)0>(at::cuda::detail::TensorInfo<T1, T2>, at::cuda::detail::TensorInfo<const T1, T2>, long, long, T2)", "mask", UNKNOWN),
    ("void at::native::vectorized_elementwise_kernel<(int)4, at::native::<unnamed>::isneginf_kernel_impl(at::TensorIteratorBase &)::[lambda() (instance 1)]::operator ()() const::[lambda() (instance 2)]::operator ()() const::[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>>(int, T2, T3)", "elementwise", UNKNOWN),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)", "elementwise", UNKNOWN),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctorOnSelf_add<long>, std::array<char*, 2ul> >(int, at::native::CUDAFunctorOnSelf_add<long>, std::array<char*, 2ul>)", "elementwise", UNKNOWN),
    ("void at::native::vectorized_elementwise_kernel<(int)4, at::native::AUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float>>, std::array<char *, (unsigned long)2>>(int, T2, T3)", "elementwise", UNKNOWN),
    ("void at::native::vectorized_elementwise_kernel<(int)4, at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float>>, at::detail::Array<char *, (int)3>>(int, T2, T3)", "elementwise", UNKNOWN),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::BUnaryFunctor<int, int, int, at::native::binary_internal::div_floor_kernel_cuda(at::TensorIteratorBase&)::{lambda()#1}> >", "elementwise", UNKNOWN),
    ("void at::native::vectorized_elementwise_kernel<(int)4, void at::native::compare_scalar_kernel<int>(at::TensorIteratorBase &, at::native::<unnamed>::OpType, T1)::[lambda(int) (instance 1)], std::array<char *, (unsigned long)2>>(int, T2, T3)", "elementwise", UNKNOWN),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}::operator()() const::{lambda()#2}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul> >", "elementwise", UNKNOWN),
    ("void at::native::vectorized_elementwise_kernel<(int)4, at::native::<unnamed>::launch_clamp_scalar(a…", "elementwise", UNKNOWN),
    ("void at::native::elementwise_kernel_manual_unroll<128, 8, ...>", "elementwise", UNKNOWN),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::exp_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda()#2}::operator()() const::{lambda(float)#1}, at::detail::Array<char*, 2> >", "elementwise", UNKNOWN),
    ("void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::FusedOptimizerTensorListMetadata<(int)4>, at::native::<unnamed>::FusedAdamMathFunctor<float, (int)4, (at::native::ADAM_MODE)0, (bool)0>, float *, double>(T1, T2, T3...)", "elementwise", UNKNOWN),
    ("void multi_tensor_apply_kernel<TensorListMetadata<5, false>, AdamFunctor<float, float, int>, float, float, float>", "elementwise", UNKNOWN),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<1>, at::native::(anonymous namespace)::LpNormFunctor<float, (at::native::NormType)1, float, 1, 1, 0>, float*, int>", "reduction", UNKNOWN),
    # PyTorch, reductions, softmax, norms, losses, pooling
    ("void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<bool, at::native::func_wrapper_t<bool, at::native::and_kernel_cuda(at::TensorIterator &)::[lambda() (instance 1)]::operator ()() const::[lambda() (instance 12)]::operator ()() const::[lambda(bool, bool) (instance 1)]>, unsigned int, bool, (int)4, (int)4>>(T3)", "reduction", UNKNOWN),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, 4> >(at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, 4>)", "reduction", UNKNOWN),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long, 4, 4> >", "reduction", UNKNOWN),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, float, 4, 4> >", "reduction", UNKNOWN),
    ("void at::native::tensor_kernel_scan_innermost_dim<float, std::plus<float> >(float*, float const*, unsigned int, unsigned int, unsigned int, float, std::plus<float>)", "reduction", UNKNOWN),
    ("void at::native::<unnamed>::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(T1 *, T1 *, …", "reduction", UNKNOWN),
    ("void at::native::<unnamed>::max_pool_backward_nchw<float, float>(const T1 *, const long *, int, lon…", "reduction", UNKNOWN),
    ("void at::native::<unnamed>::adaptive_average_pool<float>(const T1 *, T1 *, int, int, int, int, long…", "reduction", UNKNOWN),
    ("void at::native::<unnamed>::atomic_adaptive_average_gradinput<float>(T1 *, const T1 *, int, int, in…", "reduction", UNKNOWN),
    ("void <unnamed>::softmax_warp_forward<float, float, float, (int)11, (bool)0, (bool)0>(T2 *, const T1 *, int, int, int, const bool *, int, bool)", "softmax", UNKNOWN),
    ("void (anonymous namespace)::softmax_warp_backward<float, float, float, 7, true, false>(float*, float const*, float const*, int, int, int, bool const*)", "softmax", UNKNOWN),
    ("void at::native::<unnamed>::cunn_SoftMaxForwardReg<float, float, float, at::native::<unnamed>::SoftMaxForwardEpilogue, long, (int)8>(T3 *, const T1 *, T5)", "softmax", UNKNOWN),
    ("void at::native::(anonymous namespace)::cunn_SoftMaxForwardSmem<8, c10::BFloat16, float, c10::BFloat16, at::native::(anonymous namespace)::SoftMaxForwardEpilogue, int>", "softmax", UNKNOWN),
    ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int, float, float const*, float const*, float const*, float*, float*, float*)", "norm", UNKNOWN),
    ("void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<float>(long, float, float const*, float*, float*)", "norm", UNKNOWN),
    ("void at::native::(anonymous namespace)::LayerNormForwardCUDAKernel<float, float, false>(long, float const*, float const*, float const*, float const*, float const*, float*)", "norm", UNKNOWN),
    ("void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<float, float, false>(float const*, float const*, float const*, float const*, float const*, float*, int)", "norm", UNKNOWN),
    ("void at::native::batch_norm_transform_input_kernel<c10::Half, c10::Half, float, false, int>(at::GenericPackedTensorAccessor<c10::Half const, 3ul>)", "norm", UNKNOWN),
    ("void cudnn::bn_bw_1C11_kernel_new<__half, float, float2, 512, true, 1>(float, float, float, float, cudnnTensorStruct, __half const*)", "norm", UNKNOWN),
    ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<__half, float, 512, true, 1, true>(cudnnTensorStruct, __half const*)", "norm", UNKNOWN),
    # PyTorch, random numbers
    ("void at::native::<unnamed>::distribution_elementwise_grid_stride_kernel<float, (int)4, void at::native::templates::cuda::normal_and_transform<c10::Half, float, at::CUDAGeneratorImpl *>>(long, at::PhiloxCudaState, T3, T4)", "rng", UNKNOWN),
    ("void at::native::<unnamed>::fused_dropout_kernel_vec<float, float, unsigned int, (int)1, (int)4, bo…", "rng", UNKNOWN),
    ("void at::native::vectorized_elementwise_kernel<(int)4, void at::native::<unnamed>::masked_scale_kernel<bool, float, float>(at::Tensor &)", "rng", UNKNOWN),
    # PyTorch, moving data
    ("void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)", "copy", UNKNOWN),
    ("void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<at::native::index_kernel_impl<at::native::OpaqueType<2> >(at::TensorIteratorBase&)", "copy", UNKNOWN),
    ("void at::native::_scatter_gather_elementwise_kernel<128, 8, at::native::_cuda_scatter_gather_internal_kernel<true, float>", "copy", UNKNOWN),
    ("void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>(at::cuda::detail::TensorInfo<float, unsigned int>)", "copy", UNKNOWN),
    ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 3, 128, 1>(float*, at::native::(anonymous namespace)::CatArrInputTensorMetadata<float, unsigned int, 128, 1>)", "copy", UNKNOWN),
    ("at::native::detail::split_with_sizes_copy_out_contiguous_no_cast_kernel(char **, char **, long *, long *, long *, long, long)", "copy", UNKNOWN),
    ("void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float, float, long>(long const*, float const*, float*, int, long, int)", "copy", UNKNOWN),
    ("void at::native::im2col_kernel<float>(long, float const*, long, long, long, long, long, long, long, long, long, long, long, long, float*)", "copy", UNKNOWN),
    ("void at::native::sbtopk::gatherTopK<float, unsigned int, (int)2, (bool)0>(at::cuda::detail::TensorInfo<const T1, T2>, T2, T2, bool, T2, T2)", "other", UNKNOWN),
    ("void at::native::mbtopk::computeBlockDigitCounts<float, unsigned int, unsigned int, 2>(at::cuda::detail::TensorInfo<float const, unsigned int>)", "other", UNKNOWN),
    # cuBLAS
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas", "gemm", FMA),
    ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize192x128x32_stage3_warpsize4x2x1_tensor16x8x16_kernel", "gemm", TENSOR),
    ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize160x12...", "gemm", TENSOR),
    ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8_execute_kernel__5x_cublas", "gemm", TENSOR),
    ("sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize128x128x32_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas", "gemm", TENSOR),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas", "gemm", TENSOR),
    ("sm89_xmma_gemm_e4m3e4m3_e4m3f32_f32_tn_n_tilesize128x128x64_stage3_warpsize2x2x1_tensor16x8x32_bias_f16_execute_kernel__5x_cublas", "gemm", TENSOR),
    ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_relu_f2f_stages_32x5_tn", "gemm", TENSOR),
    ("ampere_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8_f2f_stages_64x6_tn", "gemm", TENSOR),
    ("ampere_s16816gemm_bf16_64x64_sliced1x2_ldg8_stages_64x6_nn", "gemm", TENSOR),
    ("ampere_fp16_s1688gemm_fp16_128x128_ldg8_relu_f2f_stages_32x1_nn", "gemm", TENSOR),
    ("turing_fp16_s1688gemm_fp16_256x128_ldg8_f2f_tn", "gemm", TENSOR),
    ("volta_fp16_s884gemm_fp16_256x128_ldg8_f2f_nn", "gemm", TENSOR),
    ("volta_h884gemm_256x64_ldg8_tn", "gemm", TENSOR),
    ("trt_ampere_h16816gemm_128x64_ldg8_nn_v1", "gemm", TENSOR),
    ("ampere_int8_i16832gemm_int8_256x128_ldg16_relu_stages_64x3_tn_v1", "gemm", TENSOR),
    ("ampere_d884gemm_64x64_nn", "gemm", TENSOR),
    ("ampere_sgemm_128x64_tn", "gemm", FMA),
    ("ampere_sgemm_64x32_sliced1x4_tn", "gemm", FMA),
    ("ampere_gcgemm_64x64_nt", "gemm", FMA),
    ("volta_sgemm_128x64_nn", "gemm", FMA),
    ("volta_fp16_sgemm_fp16_128x64_nn", "gemm", FMA),
    ("maxwell_sgemm_128x64_tn", "gemm", FMA),
    ("volta_dgemm_64x64_nn", "gemm", UNKNOWN),
    ("ampere_zgemm_64x64_nn", "gemm", UNKNOWN),
    ("volta_hgemm_128x128_tn", "gemm", UNKNOWN),
    ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN", "gemm", TENSOR),
    ("nvjet_sm100_tst_64x16_64x16_2x4_2cta_h_bz_splitK_TNT", "gemm", TENSOR),
    ("nvjet_sm120_tst_mma_64x64x128_3_32x32x128_tmaAB_alignCD4_bz_TNNN", "gemm", TENSOR),
    ("nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT", "gemm", TENSOR),
    ("void cublasLt::splitKreduce_kernel<(int)32, (int)16, int, float, __nv_bfloat16, float, __nv_bfloat16, (bool)0, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, (bool)1>(cublasLt::cublasSplitKParams<T6>, const T4 *)", "gemm", UNKNOWN),
    ("void splitKreduce_kernel<(int)32, (int)16, int, float, float, float, float, (bool)1, (bool)1, (bool…", "gemm", UNKNOWN),
    ("void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false, false, cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<float const> > >(cublasGemvParamsEx<int>, float, float)", "gemm", FMA),
    ("void gemv2T_kernel_val<int, int, double, double, double, double, 128, 16, 4, 4, false, false, cublasGemvParamsEx<int> >(cublasGemvParamsEx<int>, double, double)", "gemm", UNKNOWN),
    ("void gemvNSP_kernel<float, float, float, float, 1, 32, 4, 1024, cublasGemvParamsEx<int>>(T9)", "gemm", FMA),
    ("std::enable_if<!T7, void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, (bool)0, (bool)1, (bool)1, (bool)0, (int)7, (bool)0, cublasGemvParamsEx<int>>(T13)", "gemm", UNKNOWN),
    ("void gemmSN_TN_kernel<float, 128, 16, 2, 4, 2, 2, true, cublasGemvTensorStridedBatched<float const>>(cublasGemmSmallNParams<float>)", "gemm", FMA),
    ("void gemmk1_kernel<int, float, 256, 5, false, false, false, true, cublasGemvTensorStridedBatched<float const> >(cublasGemmk1Params<float>)", "gemm", FMA),
    ("void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float const>, cublasGemvTensorStridedBatched<float> > >(cublasDotParams<cublasGemvTensor<float const> >)", "gemm", UNKNOWN),
    ("void magma_sgemmEx_kernel<float, float, float, (bool)0, (bool)0, (int)6, (int)3, (int)5, (int)3, (int)3>(int, int, int)", "gemm", FMA),
    ("void axpy_kernel_val<float, float>(cublasAxpyParamsVal<float, float, float>)", "elementwise", UNKNOWN),
    # CUTLASS and quantized GEMM
    ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4>(cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4::Params)", "gemm", TENSOR),
    ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(T1::Params)", "gemm", TENSOR),
    ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_64x1_tn_align8>(T1::Params)", "gemm", TENSOR),
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(T1::Params)", "gemm", FMA),
    ("cutlass3x_sm100_simt_sgemm_f32_f32_f32_f32_f32_32x32x16_1x1x1_3_tnn_align1_bias_f32_relu", "gemm", FMA),
    ("void cutlass::Kernel<cutlass_70_tensorop_f16_s884gemm_f16_128x128_32x2_nn_align8>(T1::Params)", "gemm", TENSOR),
    ("void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<cute::tuple<int, int, int>>>>>(T1::Params)", "gemm", TENSOR),
    ("Kernel2", "gemm", UNKNOWN),
    ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<(unsigned int)0, (unsigned int)2112>(float *)", "gemm", TENSOR),
    ("void deep_gemm::sm100_fp8_fp4_gemm_1d1d_impl<(cute::UMMA::Major)0, (cute::UMMA::Major)0, 128u>", "gemm", TENSOR),
    ("bmm_E4m3_E4m3E4m3_Fp32_t128x64x128u2_s6_et64x64_m64x64x32_c1x1x1_rM_TN_transOut_noShfl_dsFp8", "gemm", TENSOR),
    ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_Ab32_Bb32_Cb32_t128x32x256_s5_et128x32_m256x32x32_c2x1x1_rM_TN_transOut", "gemm", TENSOR),
    ("bmm_Bfloat16_E2m1E2m1_Fp32_bA16_bB16_t128x8x512", "gemm", TENSOR),
    ("void marlin_moe_wna16::Marlin<__nv_bfloat16, 1125899906909960l, 128, 1, 8, 8, 4, 8, false>(int4 const*)", "gemm", TENSOR),
    ("void marlin::Marlin<c10::Half, 256, 1, 8, 8, 4>(int4 const*, int4 const*, int4*)", "gemm", TENSOR),
    ("kernel_cutlass_kernel_flashinfergemmkernelsdense_blockscaled_gemm_sm100Sm100BlockScaledPersistentDenseGemmKernel_object_", "gemm", TENSOR),
    ("fused_moe_kernel", "gemm", UNKNOWN),
    ("void mul_mat_vec_q<(ggml_type)14, 1, false, false>(const void *, const void *, const int *, float *)", "gemm", UNKNOWN),
    ("void deep_gemm::sm100_paged_mqa_logits<1u, 32u, 128u, 64u, true, true, true, 3u>(unsigned int)", "gemm", TENSOR),
    ("void marlin::awq_marlin_repack_kernel<256, 4>(unsigned int const*, unsigned int*, int, int)", "copy", UNKNOWN),
    ("void kgemm_4bit_inference_naive<__half, 128, 16>(int, int, int, __half*)", "gemm", UNKNOWN),
    ("void MatrixMulCUDA<32>(float *, float *, float *, int, int)", "gemm", UNKNOWN),
    # Convolution, cuDNN
    ("cudnn_infer_ampere_scudnn_128x64_relu_xregs_large_nn_v1", "gemm", FMA),
    ("volta_scudnn_128x64_stridedB_splitK_small_nn_v1", "gemm", FMA),
    ("maxwell_scudnn_128x128_relu_interior_nn_v1", "gemm", FMA),
    ("volta_fp16_s884cudnn_fp16_256x64_ldg8_relu_f2f_exp_small_nhwc2nchw_tn_v1", "gemm", TENSOR),
    ("turing_fp16_s1688cudnn_fp16_256x64_sliced1x2_ldg8_relu_f2f_exp_small_nhwc_tn_v1", "gemm", TENSOR),
    ("sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_stage4_w…", "gemm", TENSOR),
    ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_warpsize2x2x1_g1_tensor16x8x8", "gemm", TENSOR),
    ("sm86_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize64x64x64_stage3_warpsize1x4x1_g8_tensor16x8x16_t1r3s3_execute_kernel__5x_cudnn", "gemm", TENSOR),
    ("sm90_xmma_dgrad_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x32_warpgroupsize1x1x1_g1_execute_segment_k_on_kernel__5x_cudnn", "gemm", TENSOR),
    ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nhwckrsc_nchw_tilesize128x128x8_stage3_warpsize2x2x1_g1_ffma_t1r1s1_execute_kernel__5x_cudnn", "gemm", FMA),
    ("void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x128_16x4_nhwc_align4>(T1::Params)", "gemm", TENSOR),
    ("void implicit_convolve_sgemm<float, float, 512, 6, 8, 3, 3, 5, 1, false, false, true>(int, int, int, float const*, int, float*, float const*, kernel_conv_params, unsigned long long, int, float, float, int, float const*, float const*, bool, int, int)", "gemm", FMA),
    ("_Z23implicit_convolve_sgemmIffLi1024ELi5ELi5ELi3ELi3ELi3ELi1ELb0ELb1ELb1EEviiiPKT_iPT0_S2_18kernel_conv_paramsyiffiPKS3_S7_bii", "gemm", FMA),
    ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(cudnn::winograd_nonfused::WinogradDataParams<float, float>)", "gemm", UNKNOWN),
    ("void fft2d_r2c_32x32<float, (bool)0, (unsigned int)0, (bool)0>(float2 *, const T1 *, int, int, int,…", "gemm", UNKNOWN),
    ("void internal::region_transform_ABC_val<int, (int)32, (int)32, (bool)0, internal::TransformParamsAB…", "gemm", UNKNOWN),
    ("void cask_cudnn_infer::computeOffsetsKernel<(bool)0, (bool)0>(cask_cudnn_infer::ComputeOffsetsParam…", "gemm", UNKNOWN),
    ("void cudnn::ops::nchwToNhwcKernel<float, float, float, (bool)0, (bool)1, (cudnnKernelDataType_t)2>(cudnn::ops::nchw2nhwc_params_t<float>, float const*, float*)", "copy", UNKNOWN),
    ("void cudnn::ops::nhwcToNchwKernel<__half, __half, float, bool=1, bool=0, cudnnKernelDataType_t=0>(cudnn::ops::nhwc2nchw_params_t<float>, __half const *, __half*)", "copy", UNKNOWN),
    ("void cudnn::ops::convertTensor_kernel<float, float, float, (cudnnKernelDataType_t)2>(float, float const*, float, float*, unsigned long)", "copy", UNKNOWN),
    ("void pooling_bw_kernel_max_nchw_fully_packed_small<float, float, 2, (cudnnNanPropagation_t)0>(cudnnTensorStruct, float const*, cudnnTensorStruct)", "reduction", UNKNOWN),
    # Attention
    ("fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::half_t, cutlass::arch::Sm80, (bool)1, (int)64, (int)64, (int)64, (bool)1, (bool)1>::Params)", "attention", TENSOR),
    ("fmha_cutlassB_bf16_aligned_128x128_k128_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<cutlass::bfloat16_t>)", "attention", TENSOR),
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", "attention", TENSOR),
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm75", "attention", FMA),
    ("fmha_cutlassB_f16_aligned_64x64_k32_sm50", "attention", UNKNOWN),
    ("fmha_cutlassB_f16_aligned_64x64_k64_dropout_sm80(Att...", "attention", TENSOR),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_cga1x1x1_kernel0_0", "attention", TENSOR),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_bf16_knob_13_128x64x64_1x2x2_cga1x1x1_kernel0_0", "attention", TENSOR),
    ("cudnn_generated_oneshot_sdpa_sm80_flash_fprop_f16", "attention", TENSOR),
    ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)64, (int)128, (int)128, (int)4, (bool)0, (bool)0, cutlass::half_t, Flash_kernel_traits<(int)64, (int)128, (int)128, (int)4, cutlass::half_t>>, (bool)0, (bool)1>(pytorch_flash::Flash_fwd_params)", "attention", TENSOR),
    ("void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, cutlass::bfloat16_t>, true, false>(flash::Flash_fwd_params)", "attention", TENSOR),
    ("void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, cutlass::bfloat16_t>, 4, 5, true>(flash::Flash_fwd_params)", "attention", UNKNOWN),
    ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, 128, 128, 8, 4, 4, 4, false, false, cutlass::half_t>>(pytorch_flash::Flash_bwd_params)", "attention", TENSOR),
    ("void pytorch_flash::flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<64, 128, 128, 8, 4, 4, 4, false, false, cutlass::half_t>>(pytorch_flash::Flash_bwd_params)", "attention", UNKNOWN),
    ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>>>>>>(flash::Params)", "attention", TENSOR),
    ("void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<8>, cute::C<128>>>>(flash::Params)", "attention", UNKNOWN),
    ("void cutlass::device_kernel<flash::FlashAttnBwdPreprocess<cute::tuple<cute::C<128>>>>(flash::Params)", "attention", UNKNOWN),
    ("void flash::prepare_varlen_num_blocks_kernel<1, true>(int)", "attention", UNKNOWN),
    ("flash_fwd_splitkv_mla_fp8_sparse_kernel", "attention", TENSOR),
    ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<(flashinfer::MaskMode)1, (unsigned int)128, (unsigned int)2>, PagedParams>(T2)", "attention", TENSOR),
    ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, 2u, 1u, 8u, 16u, 8u>(float)", "attention", UNKNOWN),
    ("void vllm::paged_attention_v1_kernel<unsigned short, unsigned short, 128, 16, 128, (vllm::Fp8KVCacheDataType)0, false>(unsigned short*)", "attention", UNKNOWN),
    ("void vllm::paged_attention_v2_reduce_kernel<unsigned short, 128, 128, 512>(unsigned short*)", "attention", UNKNOWN),
    ("fmha_v2_flash_attention_fp16_64_32_S_qkv_128_causal_sm86_kernel_nl", "attention", TENSOR),
    ("fmhaSm100fKernel_QkvE4m3OBfloat16H512PagedKvDenseDynamicTokenSparseP1VarSeqQ16Kv128PersistentSwapsAbForGen", "attention", TENSOR),
    ("void mmha::masked_multihead_attention_kernel<unsigned short, 128, 4, 8, 64>(Multihead_attention_params<unsigned short, false>)", "attention", UNKNOWN),
    ("triton_tem_fused_flex_attention_0", "attention", UNKNOWN),
    ("triton_tem_fused_0", "attention", UNKNOWN),
    ("_attn_fwd", "attention", UNKNOWN),
    ("kernel_unified_attention_2d", "attention", UNKNOWN),
    ("_fwd_grouped_kernel_stage1", "attention", UNKNOWN),
    ("_fwd_kernel_stage2", "attention", UNKNOWN),
    ("tiled_o3", "attention", FMA),
    ("tiled_o5", "attention", TENSOR),
    ("tiled_o6", "attention", TENSOR),
    ("void vllm::merge_attn_states_kernel<c10::BFloat16, 128u>(c10::BFloat16*)", "attention", UNKNOWN),
    ("void flash_attn_ext_f16<128, 128, 16, 2, 4, false>(char const*)", "attention", TENSOR),
    ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>(__nv_bfloat16 const*)", "copy", UNKNOWN),
    ("void vllm::concat_and_cache_mla_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>(__nv_bfloat16 const*)", "copy", UNKNOWN),
    # Communication
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)", "communication", UNKNOWN),
    ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "communication", UNKNOWN),
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "communication", UNKNOWN),
    ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "communication", UNKNOWN),
    ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "communication", UNKNOWN),
    ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals, vllm::Signal*)", "communication", UNKNOWN),
    ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(c10::BFloat16**)", "communication", UNKNOWN),
    ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8, true>", "communication", UNKNOWN),
    ("void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<(unsigned char)4, __nv_bfloat16, true, float4>(flashinfer::X)", "communication", UNKNOWN),
    ("void deep_ep::intranode::dispatch<(int)2, (int)768, (int)8192>(int4 *, float *, float *, int *)", "communication", UNKNOWN),
    ("void deep_ep::intranode::combine<__nv_bfloat16, (int)2, (int)768, (int)4096>(T1 *, float *)", "communication", UNKNOWN),
    # Triton through torch.compile
    ("triton_poi_fused_add_copy__div_lerp_mul_neg_pow_rsub_sqrt_0", "elementwise", UNKNOWN),
    ("triton_poi_fused_add_cat_mul_rsub_sigmoid_silu_split_0", "elementwise", UNKNOWN),
    ("triton_poi_fused_0", "elementwise", UNKNOWN),
    ("triton_poi_fused__to_copy_t_8", "copy", UNKNOWN),
    ("triton_poi_fused__unsafe_view_clone_transpose_view_15", "copy", UNKNOWN),
    ("triton_per_fused__to_copy_native_layer_norm_backward_view_3", "norm", UNKNOWN),
    ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_4", "norm", UNKNOWN),
    ("triton_red_fused_mul_native_dropout_sum_23", "rng", UNKNOWN),
    ("triton_per_fused__softmax_5", "softmax", UNKNOWN),
    ("triton_red_fused__log_softmax_nll_loss_forward_2", "softmax", UNKNOWN),
    ("triton_red_fused__to_copy_lerp_linalg_vector_norm_0", "reduction", UNKNOWN),
    ("triton_tem_fused_mm_12", "gemm", UNKNOWN),
    ("triton_tem_fused__to_copy__unsafe_view_add_addmm_bmm_clone_mean_mul_pow_rsqrt_transpose_view_139", "gemm", UNKNOWN),
    ("triton_tem_fused_addmm_0_reduce_k", "gemm", UNKNOWN),
    # XLA, TensorFlow
    ("gemm_fusion_dot_265", "gemm", UNKNOWN),
    ("gemm_fusion_dot_general_1", "gemm", UNKNOWN),
    ("input_reduce_fusion_92", "reduction", UNKNOWN),
    ("loop_multiply_fusion", "elementwise", UNKNOWN),
    ("loop_add_fusion", "elementwise", UNKNOWN),
    ("loop_convert_fusion", "copy", UNKNOWN),
    ("input_scatter_fusion_3", "copy", UNKNOWN),
    ("loop_gather_fusion_1", "copy", UNKNOWN),
    ("wrapped_add", "elementwise", UNKNOWN),
    ("wrapped_transpose", "copy", UNKNOWN),
    ("fusion_15", "elementwise", UNKNOWN),
    ("triton_softmax_3_0", "softmax", UNKNOWN),
    ("all-reduce-start.1", "communication", UNKNOWN),
    ("Mul_GPU_DT_FLOAT_DT_FLOAT_kernel", "elementwise", UNKNOWN),
    ("void tensorflow::functor::ColumnReduceKernel<float const*, float*, cub::Sum>(float const*, float*, int, int, cub::Sum, std::iterator_traits<float const*>::value_type)", "reduction", UNKNOWN),
    ("void Eigen::internal::EigenMetaKernel<Eigen::TensorEvaluator<Eigen::TensorAssignOp<Eigen::TensorMap<Eigen::Tensor<float, 1, 1, int>>>>, int>(T1, T2)", "elementwise", UNKNOWN),
    # TensorRT
    ("__myl_FcCast_0x7c8c2d1d", "gemm", UNKNOWN),
    ("__myl_SiluMul_0x1b2a", "elementwise", UNKNOWN),
    ("__myl_Move_myl3_0", "copy", UNKNOWN),
    # vLLM, SGLang, TensorRT-LLM, Transformer Engine, apex, llama.cpp
    ("void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, (bool)1>(T1 *, const T1 *, int)", "elementwise", UNKNOWN),
    ("std::enable_if<T2>(int)0&&vllm::_typeConvert<T1>::exists, void>::type vllm::fused_add_rms_norm_kernel<c10::BFloat16, (int)8>(T1 *, T1 *, const T1 *, float, int, int)", "norm", UNKNOWN),
    ("void vllm::rms_norm_kernel<c10::BFloat16>(c10::BFloat16*, c10::BFloat16 const*, c10::BFloat16 const*, float, int, int)", "norm", UNKNOWN),
    ("void vllm::rotary_embedding_kernel<c10::BFloat16, (bool)1>(const long *, T1 *, T1 *, const T1 *, int)", "elementwise", UNKNOWN),
    ("void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, unsigned int, unsigned int, unsigned int, float, float)", "norm", UNKNOWN),
    ("kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnormFusedAddRMSNormKernel_object_at__tensorptrbf16gmemalign128o204820481", "norm", UNKNOWN),
    ("kernel_cutlass_kernel_flashinferquantizationkernelsmxfp8_quantizeMXFP8QuantizeSwizzledKernel_object_at__tensorptrbf16gmem", "elementwise", UNKNOWN),
    ("void (anonymous namespace)::per_token_group_quant_8bit_v2_kernel<(anonymous namespace)::NaiveScheduler, 128, 8, __half, __nv_fp8_e4m3, false, false, false, true, float>(__half const*)", "elementwise", UNKNOWN),
    ("void vllm::moe::topkGatingSoftmax<4, 128, 4, 16, int>(float const*, bool const*, float*, int, int*, int*, int, int, int)", "softmax", UNKNOWN),
    ("void vllm::moe::moe_align_block_size_kernel<int>(int const*, int*, int*, int*, int, int, int, unsigned long, int*)", "copy", UNKNOWN),
    ("void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams<cutlass::bfloat16_t, float, 2, true> >(moe::dev::finalize::KernelParams)", "reduction", UNKNOWN),
    ("void moe::dev::routing::routingCustom::routingIndicesClusterKernel<moe::dev::routing::routingCustom::KernelParams<__nv_bfloat16>>", "copy", UNKNOWN),
    ("_gumbel_sample_kernel", "rng", UNKNOWN),
    ("void transformer_engine::normalization::rmsnorm_fwd_general_kernel<transformer_engine::normalization::Kernel_traits<__nv_bfloat16>>", "norm", UNKNOWN),
    ("void scaled_upper_triang_masked_softmax_warp_forward<__half, __half, float, 11>(__half*, __half const*, float, int, int, int)", "softmax", UNKNOWN),
    ("void cuApplyLayerNorm<float, float, float>(float*, float*, float*, float const*, int, int, float, float const*, float const*)", "norm", UNKNOWN),
    ("void rms_norm_f32<1024, true, false>(float const*, float*, int, long, long, long, float)", "norm", UNKNOWN),
    ("void soft_max_f32<true, 0, 0, float>(float const*, float const*, float*)", "softmax", UNKNOWN),
    ("quantize_q8_1(float const*, void*, long, long)", "elementwise", UNKNOWN),
    ("_silu_mul_backward_kernel", "elementwise", UNKNOWN),
    ("_rmsnorm_backward_kernel", "norm", UNKNOWN),
    ("liger_cross_entropy_kernel", "softmax", UNKNOWN),
    ("memcpy32_post", "copy", UNKNOWN),
    ("_chunk_scan_fwd_kernel", "other", UNKNOWN),
    ("void causal_conv1d_channellast_fwd_kernel<Causal_conv1d_channellast_fwd_kernel_traits<(int)128, (int)4>>(ConvParamsBase)", "other", UNKNOWN),
    # cub, thrust, CuPy, sparse, FFT, science codes
    ("void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<at_cuda_detail::cub::DeviceRadixSortPolicy<long, at_cuda_detail::cub::NullType, unsigned long long>::Policy900, (bool)0, long>(T7 *, T7 *)", "other", UNKNOWN),
    ("void cub::DeviceReduceKernel<cub::DeviceReducePolicy<float, float, int, cub::Sum>::Policy600, float*, float*, int, cub::Sum, float>(float*, float*, int)", "reduction", UNKNOWN),
    ("void cub::DeviceScanKernel<cub::DeviceScanPolicy<int>::Policy600, int*, int*, cub::ScanTileState<int, true>, cub::Sum, int, int>(int*, int*)", "reduction", UNKNOWN),
    ("void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__reduce::ReduceAgent<float*, float*, float, int, thrust::plus<float>>, float*>(float*)", "reduction", UNKNOWN),
    ("void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__parallel_for::ParallelForAgent<thrust::cuda_cub::__transform::unary_transform_f<float*, float*>, long>, long>(long)", "elementwise", UNKNOWN),
    ("void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__parallel_for::ParallelForAgent<thrust::cuda_cub::__uninitialized_fill::functor<thrust::device_ptr<float>, float>, unsigned long>, unsigned long>(long)", "fill", UNKNOWN),
    ("cupy_copy__complex64_complex64", "copy", UNKNOWN),
    ("cupy_multiply__float_float64_float64", "elementwise", UNKNOWN),
    ("cupy_sum", "reduction", UNKNOWN),
    ("void cusparse::csrmm_alg2_kernel<cusparse::CsrMMPolicy<128, 4>, int, float>(int)", "gemm", UNKNOWN),
    ("void cusparse::csrmv_v3_kernel<std::integral_constant<bool, false>, int, int, double, double>(int)", "gemm", UNKNOWN),
    ("void regular_fft<192u, EPT<12u, 16u>, 16u, 2u, (padding_t)6, (twiddle_t)0, (loadstore_modifier_t)2, (layout_t)1, unsigned int, double, HostConfigPlaceholder>(kernel_arguments_t<unsigned int>)", "other", UNKNOWN),
    ("nbnxn_kernel_ElecEwQSTab_VdwLJCombGeom_VF_prune_cuda(gmx::NBAtomDataGpu, gmx::NBParamGpu, gmx::GpuPairlist<2>, bool)", "other", UNKNOWN),
    ("void Kokkos::Impl::cuda_parallel_launch_local_memory<Kokkos::Impl::ParallelReduce<Foo, Kokkos::RangePolicy<Kokkos::Cuda>>>(T1)", "reduction", UNKNOWN),
    ("cudapy::__main__::fast_matmul$241(Array<double, int=2, C, mutable, aligned>, Array<double, int=2, C, mutable, aligned>)", "gemm", UNKNOWN),
    ("void convert_kernel<__half2, float2>(__half2*, float2 const*, int)", "copy", UNKNOWN),
    ("void at::native::(anonymous namespace)::indexing_backward_kernel<float, 4>(long const*, long const*)", "copy", UNKNOWN),
    ("void renderCUDA<3u, 16u>(uint2 const*, unsigned int const*, int, int, float2 const*, float const*)", "other", UNKNOWN),
    ("vectorAdd(float const*, float const*, float*, int)", "elementwise", UNKNOWN),
    # Mangled names
    ("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIbEESt5arrayIPcLm1EEEEviT0_T1_", "fill", UNKNOWN),
    ("_ZN2at6native16triu_tril_kernelIbiLb0ELi8ELb0EEEvNS_4cuda6detail10TensorInfoIT_T0_EENS4_IKS5_S6_EEllS6_", "mask", UNKNOWN),
    ("_ZN7cutlass7Kernel2I43cutlass_80_simt_sgemm_256x128_8x4_nn_align1EEvNT_6ParamsE", "gemm", FMA),
    ("_ZN7cutlass6KernelI42cutlass_80_simt_sgemm_128x32_8x5_nn_align1EEvNT_6ParamsE", "gemm", FMA),
    ("_Z41fmha_cutlassB_f32_aligned_64x64_k128_sm80N22PyTorchMemEffAttention23AttentionBackwardKernelIN7cutlass4arch4Sm80EfLb1ELb0ELb1ELi64ELi64ELi128ELb0EE6ParamsE", "attention", TENSOR),
    ("_ZN2at6native12_GLOBAL__N_128vectorized_layer_norm_kernelIN3c108BFloat16EfLb1EEEviT0_PKT_S8_S8_PS5_S9_PS6_", "norm", UNKNOWN),
    ("_ZN5cudnn3cnn17wgrad_alg0_engineIfLi512ELi6ELi5ELi3ELi3ELi3ELb0ELi512EEEviiiPKT_iPS2_S4_18kernel_grad_paramsyifiiii", "gemm", UNKNOWN),
    # Rows that are no kernels, as some tables name them
    ("[CUDA memcpy Device-to-Host]", "memcpy", UNKNOWN),
    ("Memcpy DtoD (Device -> Device)", "memcpy", UNKNOWN),
    ("[CUDA memset]", "memset", UNKNOWN),
    ("[CUDA Graph launch]", "graph", UNKNOWN),
]  # fmt: skip


# Kernels of public HPC codes whose names hold words like add, copy or sum, and do something else or more.
PLAIN = " ".join((
    # LAMMPS
    """
    particle_map make_rho interp k_eam k_energy_fast k_lj_fast k_tersoff_zeta kernel_special
    """,
    # OpenMM
    """
    addEnergy addExtrapolatedFieldGradientToForce addForces addForcesSubset computeBornSum computeRMSDPart1 convertForces
    copyInteractionCounts copyPairsToNeighborList copyPositions generateRandomForce multiplyByCCMAConstraintMatrixKernel
    reciprocalConvolution reduceBornForce reduceBornSum reduceEnergy reduceEnergyPair scaleAtomsVelocities scaleDir
    scalePairsVelocities scalePositions sumForces applyAndersenThermostat applySettleToPositions applyShakeToVelocities
    computeGBSAForce1 distributeVirtualSiteForces gridInterpolateForce gridSpreadCharge integrateLangevinMiddlePart2
    lineSearchStep removeCenterOfMassMomentum
    """,
    # GROMACS
    """
    convertRVecToFloat3OnDevice_kernel pmegrid_to_fftgrid scaleCoordinatesKernel leapFrogKernel pmeSplineAndSpreadKernel
    packSendBufKernel unpackRecvBufKernel fusedPulsesPackXAndSendKernel
    """,
    # AMGX
    """
    addToWeights add_invAijs_to_Ma_col_major_kernel add_tau assigned_set_fill bfs_expand block_seeded_bfs_expand
    calc_rowlen_reorder compute_amax_kernel compute_inner_sum_kernel compute_multicolor_anorm_kernel createReductionMapKernel
    dbg_coloring_histogram_kernel export_matrix_diagonal export_matrix_elements fast_hash_kernel_no_permute
    fast_multihash_kernel fast_multihash_kernel_gtlt_assign_kernel fillA_4by4Blocks_Thrust_Kernel fillS2ColIndices
    fill_B_B2L_map fill_P_col_indices fill_P_global_col_indices_kernel fill_cf_map_global fill_halo_rows_row_ids
    gatherToBufferMultivector get_unsorted_MaColInd_kernel inverse_reorder_vector_values jacobi_masked_step
    jacobi_zero_ini_masked_step multicolorGSSmoothCsrKernel_NAIVE_tex multicolor_kaczmarz_smooth_kernel
    nonZerosPerCoarseRowKernel numNonZerosVecKernel permute_colors_kernel randomized_kaczmarz_smooth_kernel_warp_atomics
    reorder_whole_halo_matrix scaled_norm_factor_calc zero_copy_row_lengths_ids_offsets
    DILU_backward_NxN_kernel_skip DILU_forward_NxN_kernel_large color_kernel_greedy_onlymax dangling_nodes
    findStrongestNeighbourCsr setupBlockGSSmooth4by4BlockDiaCsrKernel_V2
    """,
    # Ginkgo
    """
    abstract_reduce adaptive_transpose_jacobi add_missing_diagonal_elements add_scaled_identity advanced_apply_kernel
    build_permutation_level cg_shuffle_sum cg_subwarp_any check_unsorted compute_submatrix_idxs_and_vals
    convert_row_idxs_to_ptrs convert_to_csr convert_to_fbcsr copy_excess_solution count_nonzero_blocks_per_row fill_in_coo
    fill_in_dense fill_in_hybrid fill_in_sellp inv_nonsymm_permute inv_nonsymm_scale_permute inv_symm_permute
    kcycle_check_stop_kernel multidot_kernel multinorm2_inf_kernel multinorminf_without_stop_kernel
    orthonormalize_subspace_vectors_kernel reduce_add_array_with_initial_value scale_excess_solution simple_apply_kernel
    sptrsv_init_kernel test_sort_warp update_next_krylov_and_add_kernel ict_sweep symbolic_factorize
    """,
    # libCEED
    """
    AtPointsTranspose CurlOrientedNoTranspose CurlOrientedUnsignedTranspose DerivTranspose GradCollocatedTranspose
    GradCollocatedTransposeAdd GradTranspose GradTransposeAddAtPoints InterpTranspose InterpTransposeAdd OffsetNoTranspose
    OrientedTranspose LinearAssembleBlock magma_gradn_3d_kernel magma_interpt_2d_kernel
    """,
    # SPECFEM3D
    """
    add_source_main_rec_noise_cuda_kernel add_sources_ac_SIM_TYPE_2_OR_3_kernel add_sources_el_SIM_TYPE_2_OR_3_kernel
    compute_add_sources_acoustic_kernel compute_add_sources_kernel memset_to_realw_kernel
    noise_read_add_surface_movie_cuda_kernel Kernel_2_noatt_iso_strain_impl UpdateDispVeloc_kernel
    compute_coupling_ocean_cuda_kernel compute_stacey_elastic_kernel enforce_free_surface_cuda_kernel normalize_data
    """,
    # Rodinia, SHOC
    """
    Kernel Fan1 Fan2 bpnn_adjust_weights_cuda bpnn_layerforward_CUDA c_CopySrcToComponents calculate_temp cuda_compute_flux
    cuda_compute_step_factor dynproc_kernel euclid hotspotOpt1 kmeansPoint likelihood_kernel lud_diagonal lud_perimeter
    mummergpuKernel needle_cuda_shared_1 normalize_weights_kernel srad_cuda_1 BFS_kernel_multi_block
    BFS_kernel_multi_block_spill Frontier_copy readTexelsRandom reduce_card_device update_clustered_pnts_mask vectorAddUniform4
    compute_lj_force kernelUpdateNablaW QTC_device triad
    """,
    # HeCBench
    """
    SumWithinBlocks SummarizationKernel addBackLocalArrays bit_rev_permutation cast1_intrinsics computeRandomConnectionScores
    copy_from_fft_output copy_to_fft_input fast_hadamard_transform_kernel feature_transpose gatherTableToConsecutive
    gatherWithFilter gcrs_m_1_w_4_coding_dotprod gpu_add_state gpu_apply_commutator gpu_apply_hamiltonian gpu_apply_sz
    init_kernel insert_batch_no_update_masked_kernel k_subtractPSF kernel_add_source_kernel maskSequences mean_shift
    mean_shift_tiling mstep_means norm_fill_kernel phase1_decode_subseq phase3_copy_num_symbols_from_aux_to_sync_points
    reduce_cross_term reduce_nms_bitmap retrieve_batch_masked_kernel scatterParticle sharedNodeDrivenPermute step_1_col_sub
    step_6_add_sub sum_detector_scores_kernel sum_pressure tv_elementwise_add_kernel uniform_fill_kernel upsample_forward_kernel
    cuThomasBatch damage_of_node hyst_kernel sobel_filter
    """,
    # reports with an own word for each
    """
    divergence multigrid_smooth integral_PO_multibounce expand_frontier explicit_euler_step experts_forward meanshift_cluster
    cufcm_mono_dipole_distribution_kernel activation_energy copyright permutation_test attention_spread reduced_mass
    random_walk_step
    """,
    # names that a careless word would catch
    """
    all_to_wall_distance asymm_kernel bernoulli_pressure_kernel boundary_layer_normal_kernel castRays cherkov_kernel
    compute_grad_weights compute_moments custom_array_kernel eam_embedding_kernel finalizeKernel flush_cache_kernel
    format_multiply fwd_kernel gatherForces interp_linear_kernel lattice_slice_kernel lookup_table_eos lbm_distribution_step
    matrix_multigrid_smooth merger_kernel multinomial_coefficients myelin_growth oneshot_array_init packHaloKernel
    polarForceKernel prelude_kernel radix_fft_stage react_and_multiply reluctance_kernel rope_dynamics rotary_engine_step
    second_quantized_hamiltonian sensor_fusion small_reduce_kernel squareLattice targetRfield top_kernel trigger_kernel
    trilinear_interpolation_kernel upsample_grid voltage_gated_activation wall_reduce_forces wavefunction_normalization
    wrapped_phase_kernel
    """
)).split()  # fmt: skip

# The same: lambdas and functors of frameworks, which say what runs in a template argument.
WRAPPED = [
    "void mfem::CuKernel1D<mfem::SparseMatrix::BooleanMult(const mfem::Array<int> &, mfem::Array<int> &) const::[lambda(int) (instance 1)]>(int, T1)",
    "void RAJA::policy::cuda::impl::forall_cuda_kernel<RAJA::policy::cuda::cuda_exec_explicit<RAJA::iteration_mapping::Direct>, (unsigned long)1, void rajaperf::apps::ENERGY::runCudaVariantImpl<(unsigned long)128>(rajaperf::VariantID)::[lambda(long) (instance 1)]>(T4, T3, T5)",
    "void Kokkos::Impl::cuda_parallel_launch_local_memory<Kokkos::Impl::ParallelFor<void sundials::kokkos::impl::N_VLinearSum_Kokkos<sundials::kokkos::Vector<Kokkos::Cuda, Kokkos::CudaSpace>>(double, _generic_N_Vector *)::[lambda(unsigned int) (instance 1)], Kokkos::RangePolicy<Kokkos::Cuda>, Kokkos::Cuda>>(T1)",
    "void amrex::launch_global<(int)256, amrex::ParallelFor<(int)256, WarpX::AddSpaceChargeField(WarpXParticleContainer &)::[lambda(int, int, int) (instance 1)]>>(T2)",
    "Kernel(Node *, int *, bool *, bool *, bool *, int *, int)",
    "Kernel2(bool *, bool *, bool *, bool *, int)",
    "random_walk_step(curandStateXORWOW *, float *, int)",
]  # fmt: skip

# Family, cause and math unit of names that once had a wrong label.
LABELS = [
    ("matmul_wmma_kernel(const __half *, const __half *, float *, int)", "gemm", "gemm", TENSOR),
    ("void tcnn::kernel_mlp_fused<(int)64, (int)8, __half, (tcnn::Activation)0, (bool)1>(tcnn::Activation, const __half *, const __half *)", "gemm", "fused MLP", TENSOR),
    ("void tcnn::kernel_mlp_fused_backward<(int)64, (int)8, __half, (tcnn::Activation)0>(const __half *)", "gemm", "fused MLP backward", TENSOR),
    ("fermiCgemm_v3_kernel", "gemm", "gemm", FMA),
    ("kernel_sgemm_NT_NT", "gemm", "gemm", FMA),
    ("cupy_inclusive_batch_scan_kernel", "reduction", "scan", UNKNOWN),
    ("cupy_scan_naive", "reduction", "scan", UNKNOWN),
    ("cupy_nonzero_kernel", "other", "selection", UNKNOWN),
    ("void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__merge_sort::BlockSortAgent<int *, int *, long, thrust::less<int>>, bool>(bool)", "other", "sort", UNKNOWN),
    ("_ZN6thrust8cuda_cub4core13_kernel_agentINS0_12__merge_sort14BlockSortAgentIPiS4_lNS_4lessIiEEEEbEEvT0_", "other", "sort", UNKNOWN),
    ("void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__copy_if::CopyIfAgent<int *, int *>, int *>(int *)", "other", "selection", UNKNOWN),
    ("void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__scan::ScanAgent<int *, int *, thrust::plus<int>>, int *>(int *)", "reduction", "scan", UNKNOWN),
    ("_ZN6thrust8cuda_cub4core13_kernel_agentINS0_6__scan9ScanAgentIPiS4_EES4_EEvT0_", "reduction", "scan", UNKNOWN),
    ("void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__parallel_for::ParallelForAgent<thrust::cuda_cub::__fill::functor<int *, int>, long>, long>(long)", "fill", "fill", UNKNOWN),
    ("void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__parallel_for::ParallelForAgent<thrust::cuda_cub::__transform::unary_transform_f<int *, float *, thrust::identity<int>>, long>, long>(long)", "copy", "copy", UNKNOWN),
    ("void at::native::unrolled_elementwise_kernel<at::native::copy_device_to_device(at::TensorIterator &, bool)::[lambda() (instance 2)]::operator ()() const::[lambda(float) (instance 1)], at::detail::Array<char *, (int)2>>(int, T1)", "copy", "copy", UNKNOWN),
    ("void DSE::vector_fft<(int)0, (int)1, (int)128, (int)8, (int)8, (int)1, float, float, float2>(T9 *, T9 *)", "gemm", "convolution", UNKNOWN),
    ("setup_rand_states(curandStateXORWOW *, unsigned long, unsigned long)", "rng", "random", UNKNOWN),
    ("setup_kernel(curandStateXORWOW *)", "rng", "random", UNKNOWN),
    ("sm50_xmma_pooling_coalescedC_NHWC_kMAX_3_False_execute_kernel_trt", "reduction", "pooling", UNKNOWN),
    ("void tensorflow::functor::PadInputCustomKernelNCHW<float, (int)4>(int, const float *)", "copy", "copy", UNKNOWN),
    ("_gemma_rms_layernorm_forward", "norm", "norm", UNKNOWN),
    ("spgemm_reuse", "gemm", "sparse product", UNKNOWN),
    ("dot_kernel", "reduction", "reduction", UNKNOWN),
    ("kernVectorAdd(const float *, const float *, float *, int)", "elementwise", "elementwise", UNKNOWN),
    ("unpermuteVector_kernel", "copy", "copy", UNKNOWN),
    ("batch_topK_kernel", "other", "sort", UNKNOWN),
    ("attention_query_key_kernel1", "attention", "fused attention", UNKNOWN),
    ("embedding_f16x8_pack_kernel", "copy", "embedding", UNKNOWN),
    ("transposeNoBankConflicts", "copy", "copy", UNKNOWN),
    ("__pgi_uacc_cuda_fill_42_gpu", "fill", "fill", UNKNOWN),
]  # fmt: skip

# What runs forward, what backward, and the cause of the former.
BOTH_WAYS = [
    ("flash_fwd_kernel", "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", "fused attention"),
    ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<X>>(T1)", "void cutlass::device_kernel<flash::FlashAttnBwdSm90<X>>(T1)", "fused attention"),
    ("fmha_cutlassF_f16_aligned_64x64_rf_sm80", "fmha_cutlassB_f16_aligned_64x64_k64_sm80", "fused attention"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16", "fused attention"),
    ("_attn_fwd", "_attn_bwd_dkdv", "fused attention"),
    ("flash_fwd_splitkv_combine_kernel", "flash_bwd_dot_do_o_kernel", "attention helper"),
    ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)", "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel<float, float>(int)", "norm"),
    ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<__half>(int)", "void cudnn::bn_bw_1C11_kernel_new<__half>(int)", "batch norm"),
    ("void vllm::rms_norm_kernel<float>(int)", "_rmsnorm_backward_kernel", "norm"),
    ("void at::native::nll_loss_forward_reduce_cuda_kernel_2d<float>(int)", "void at::native::nll_loss_backward_reduce_cuda_kernel_2d<float>(int)", "loss"),
    ("liger_cross_entropy_kernel", "cross_entropy_backward_kernel", "log-softmax"),
    ("void at::native::EmbeddingBag_updateOutputKernel_sum_mean<float>(int)", "void at::native::embedding_backward_feature_kernel<float>(int)", "embedding"),
    ("void hpco::cuda::embedding_kernel<float>(T1 *)", "void at::native::compute_grad_weight<float, long>(long)", "embedding"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)>(int)", "void at::native::vectorized_elementwise_kernel<4, at::native::GeluBackwardCUDAKernelImpl(at::TensorIteratorBase&)>(int)", "activation"),
    ("silu_forward_kernel", "silu_backward_kernel", "activation"),
    ("void pooling_fw_4d_kernel<float>(int)", "void pooling_bw_kernel_max_nchw_fully_packed_small<float>(int)", "pooling"),
    ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 7, false, false>(float*)", "void (anonymous namespace)::softmax_warp_backward<float, float, float, 7, false, false>(float*)", "softmax"),
]  # fmt: skip

# The same kernel as the demangled and the mangled column of one report have it.
TWINS = [
    ("void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<at::native::<unnamed>::where_kernel_impl(at::TensorIterator &)::[lambda() (instance 1)]::operator ()() const::[lambda() (instance 11)]::operator ()() const::[lambda(bool, float, float) (instance 1)]>(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)",
     "_ZN2at6native18elementwise_kernelILi128ELi2EZNS0_22gpu_kernel_impl_nocastIZZZNS0_49_GLOBAL__N__d2ba64fb_16_TensorCompare_cu_71e06f4e17where_kernel_implERNS_14TensorIteratorEENKUlvE_clEvENKUlvE9_clEvEUlbffE_EEvRNS_18TensorIteratorBaseERKT_EUliE_EEviT1_"),
    ("void at::native::vectorized_elementwise_kernel<(int)8, at::native::float16_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>>(int, T2, T3)",
     "_ZN2at6native29vectorized_elementwise_kernelILi8EZNS0_24float16_copy_kernel_cudaERNS_18TensorIteratorBaseEEUlfE_St5arrayIPcLm2EEEEviT0_T1_"),
    ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]::operator ()() const::[lambda() (instance 7)]::operator ()() const::[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>, (int)4, TrivialOffsetCalculator<(int)1, unsigned int>, TrivialOffsetCalculator<(int)1, unsigned int>, at::native::memory::LoadWithCast<(int)1>, at::native::memory::StoreWithCast<(int)1>>(int, T1, T2, T4, T5, T6, T7)",
     "_ZN2at6native27unrolled_elementwise_kernelIZZZNS0_23direct_copy_kernel_cudaERNS_18TensorIteratorBaseEENKUlvE1_clEvENKUlvE5_clEvEUlfE_St5arrayIPcLm2EELi4E23TrivialOffsetCalculatorILi1EjESB_NS0_6memory12LoadWithCastILi1EEENSC_13StoreWithCastILi1EEEEEviT_T0_T2_T3_T4_T5_"),
    ("void at::native::vectorized_elementwise_kernel<(int)4, at::native::AUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float>>, std::array<char *, (unsigned long)2>>(int, T2, T3)",
     "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_13AUnaryFunctorIfffNS0_15binary_internal10MulFunctorIfEEEESt5arrayIPcLm2EEEEviT0_T1_"),
    ("void at::native::triu_tril_kernel<bool, int, (bool)0, (int)8, (bool)0>(at::cuda::detail::TensorInfo<T1, T2>, at::cuda::detail::TensorInfo<const T1, T2>, long, long, T2)",
     "_ZN2at6native16triu_tril_kernelIbiLb0ELi8ELb0EEEvNS_4cuda6detail10TensorInfoIT_T0_EENS4_IKS5_S6_EEllS6_"),
]  # fmt: skip


@pytest.fixture(scope="module")
def rules() -> kernel_rules.Rules:
    """The shipped rules."""
    return load_rules()


def write(folder: Path, text: str) -> Path:
    """A rule file with this text."""
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def test_known_names(rules: kernel_rules.Rules) -> None:
    """Every collected name gets the family and the math unit that an engineer gave it."""
    names = [name for name, _, _ in KNOWN]
    kinds = classify(rules, names)
    found = list(zip(names, kinds.family, kinds.math_unit, strict=True))
    assert [row for row, known in zip(found, KNOWN, strict=True) if row != known] == []


def test_names_of_hpc_codes_stay_other(rules: kernel_rules.Rules) -> None:
    """A word that may mean anything in a program's own name decides nothing: no rule takes any of these names."""
    assert len(set(PLAIN)) == len(PLAIN) >= 250
    kinds = classify(rules, PLAIN + WRAPPED)
    assert [
        row for row in zip(PLAIN + WRAPPED, kinds.family, kinds.rule, strict=True) if row[2] != "unmatched"
    ] == []


def test_words_of_names_in_any_case_stay_other(rules: kernel_rules.Rules) -> None:
    """`expand_frontier`, `ExpandFrontier` and `EXPAND_FRONTIER` are one name: how it is written does not matter."""
    snakes = [name for name in PLAIN if name.islower() and "_" in name]
    camels = ["".join(word.capitalize() for word in name.split("_")) for name in snakes]
    names = [name.upper() for name in snakes] + camels + [f"app::{name}" for name in snakes]
    kinds = classify(rules, names)
    assert [row for row in zip(names, kinds.family, kinds.rule, strict=True) if row[2] != "unmatched"] == []


@pytest.mark.parametrize(("name", "family", "cause", "unit"), LABELS)
def test_labels(rules: kernel_rules.Rules, name: str, family: str, cause: str, unit: str) -> None:
    """Family, cause and math unit of names that are easily taken for something else."""
    kinds = classify(rules, [name])
    assert (kinds.family, kinds.cause, kinds.math_unit) == ([family], [cause], [unit])


@pytest.mark.parametrize(("forward", "backward", "cause"), BOTH_WAYS)
def test_forward_and_backward_are_different_causes(
    rules: kernel_rules.Rules, forward: str, backward: str, cause: str
) -> None:
    """The backward kernel of a pair has the family of the forward one, and the cause says that it is backward."""
    kinds = classify(rules, [forward, backward])
    assert kinds.cause == [cause, f"{cause} backward"]
    assert kinds.family[0] == kinds.family[1]


def test_plain_words_count_for_libraries_and_in_plain_names(rules: kernel_rules.Rules) -> None:
    """Beside other words a word counts only in a library's function."""
    names = ["scale_kernel", "vectorScale2", "app::scale<float>", "scale_forces", "vllm::scale_forces"]
    assert classify(rules, names).family == ["elementwise"] * 3 + ["other", "elementwise"]


def test_known_names_cover_every_family_and_unit() -> None:
    """The collected names are many, distinct, and leave no family and no unit out."""
    assert len({name for name, _, _ in KNOWN}) == len(KNOWN) >= 250
    assert {family for _, family, _ in KNOWN} == {*FAMILIES} - {"migration"}  # no kernel's name tells of one
    assert {unit for _, _, unit in KNOWN} == set(MATH_UNITS)


def test_mangled_names_classify_as_their_demangled_twins(rules: kernel_rules.Rules) -> None:
    """Family, unit, backend, cause and deciding rule are the same for both spellings of a kernel."""
    assert classify(rules, [d for d, _ in TWINS]) == classify(rules, [m for _, m in TWINS])


def test_short_names_of_the_report_column_classify(rules: kernel_rules.Rules) -> None:
    """The short names that nsys stores still give the family where the function alone decides it."""
    names = [
        "softmax_warp_forward",
        "flash_fwd_kernel",
        "triu_tril_kernel",
        "reduce_all_kernel",
        "CatArrayBatchedCopy",
    ]
    assert classify(rules, names).family == ["softmax", "attention", "mask", "reduction", "copy"]


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("fmha_cutlassF_f16_aligned_64x64_rf_sm80", "efficient"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1", "cudnn"),
        ("void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<(int)64>>(T1)", "flash"),
        (
            "void pytorch_flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<(int)64>>(T1)",
            "flash",
        ),
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<X>>>(T1::Params)", "flash"),
        ("triton_tem_fused_flex_attention_3", "flex"),
        ("void tiled_o0<64>(float *)", "tiled_o0"),
        ("tiled_o4", "tiled_o4"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_ffma", None),
    ],
)
def test_attention_backend(rules: kernel_rules.Rules, name: str, backend: str | None) -> None:
    """A fused attention kernel tells its backend, a GEMM does not: math attention is made of ordinary kernels."""
    assert classify(rules, [name]).attention_backend == [backend]


@pytest.mark.parametrize(
    ("index", "cause"),
    [(0, "where"), (1, "cast float→half"), (2, "cast to float"), (3, "scale"), (4, "mask build")],
)
def test_causes_of_math_attention(index: int, cause: str) -> None:
    """The extra work of math attention gets a finer label than its family, in both spellings."""
    assert classify(load_rules(), TWINS[index]).cause == [cause, cause]


def test_cause_defaults_to_the_family(rules: kernel_rules.Rules) -> None:
    """Where no rule says more, the cause repeats the family; an unknown kernel is other on both counts."""
    kinds = classify(rules, ["ampere_sgemm_128x64_tn", "qwxyz"])
    assert (kinds.cause, kinds.family, kinds.rule) == (
        ["gemm", "other"],
        ["gemm", "other"],
        ["cuBLAS sgemm", "unmatched"],
    )


def test_real_report_leaves_under_one_percent_to_other(rules: kernel_rules.Rules) -> None:
    """On the shipped report `other` holds under 1 % of kernel time, and every attention backend is seen."""
    with closing(sqlite3.connect(f"file:{REPORT}?mode=ro", uri=True)) as file:
        rows = file.execute(
            "SELECT value, sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName GROUP BY 1"
        ).fetchall()
    kinds = classify(rules, [name for name, _ in rows])
    other = sum(ns for (_, ns), family in zip(rows, kinds.family, strict=True) if family == "other")
    assert other * 100 < sum(ns for _, ns in rows)
    assert {"flash", "efficient", "cudnn"} <= set(kinds.attention_backend)


# ---- the rules themselves


def test_every_shipped_rule_is_well_formed(rules: kernel_rules.Rules) -> None:
    """The shipped file passes the checks that a user's file must pass, with distinct rule names."""
    assert load_rules(kernel_rules.SHIPPED_RULES).rules == rules.rules * 2
    assert len({rule.name for rule in rules.rules}) == len(rules.rules)


def test_needed_words_never_hide_a_match(rules: kernel_rules.Rules) -> None:
    """Asking by candidates gives exactly what searching every expression in order gives."""
    names = [name for name, _, _ in KNOWN] + [mangled for _, mangled in TWINS]
    names += PLAIN + WRAPPED + [name for name, *_ in LABELS]
    everything = kernel_rules.Rules(rules.rules, rules.checks, ("",) * len(rules.checks))
    assert classify(rules, names) == classify(everything, names)


@pytest.mark.parametrize(
    ("pattern", "word"),
    [
        ("flash_fwd_kernel", "flash"),
        ("nvjets?_tst", "nvjet"),
        ("(?:copy|cast)_gemm", "gemm"),
        ("copy|cast", ""),
        ("[a-z]+x[^abc]softmax", "softmax"),
        (r"\bwhere\d", "where"),
        ("[]abc]fill", "fill"),
        ("SoftMax", "softmax"),
        ("[1-9]+", ""),
    ],
)
def test_needed_word(pattern: str, word: str) -> None:
    """The word an expression is asked by stands in every name that it can match."""
    assert kernel_rules._needed_word(pattern) == word


def test_own_rules_are_asked_first(tmp_path: Path) -> None:
    """A user's rule beats the shipped one for the same name and leaves other names alone."""
    path = write(
        tmp_path,
        '[[rule]]\nname = "mine"\nmatch = ["^ampere_(?P<kind>s)gemm", "renderCUDA"]\nfamily = "norm"\n'
        'math_unit = "tensor core"\nattention_backend = "tiled"\ncause = ["by {kind}", "plain"]\n',
    )
    kinds = classify(load_rules(path), ["ampere_sgemm_32x32", "renderCUDA(int)", "volta_sgemm_128x64_nn"])
    assert kinds.family == ["norm", "norm", "gemm"]
    assert kinds.math_unit == ["tensor core", "tensor core", "FP32 FMA"]
    assert kinds.attention_backend == ["tiled", "tiled", None]
    assert kinds.cause == ["by s", "plain", "gemm"]
    assert kinds.rule == ["mine", "mine", "cuBLAS sgemm"]


def test_where_words_looks_at_the_words_of_the_own_name(tmp_path: Path) -> None:
    """Words are found however the name joins them, and `only` says which others may stand beside them."""
    path = write(
        tmp_path,
        '[[rule]]\nname = "mine"\nmatch = "^rainy day"\nwhere = "words"\nonly = "rainy day seattle"\nfamily = "norm"\n',
    )
    names = [
        "rainy_day_kernel",
        "ns::RainyDay2<int>(int)",
        "RAINY_DAY_SEATTLE",
        "rainy_day_london",
        "a_rainy_day_b_c",
    ]
    assert classify(load_rules(path), names).rule == ["mine", "mine", "mine", "unmatched", "mine"]


def test_where_function_looks_at_the_function_only(tmp_path: Path) -> None:
    """An expression on the function ignores template arguments and parameters."""
    path = write(tmp_path, '[[rule]]\nname = "mine"\nmatch = "secret"\nwhere = "function"\nfamily = "norm"\n')
    assert classify(load_rules(path), ["void secret<int>(int)", "void zzz<secret>(secret)"]).rule == [
        "mine",
        "unmatched",
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rule = 3", r"expected nothing but \[\[rule\]\] tables"),
        ("", r"expected nothing but \[\[rule\]\] tables"),
        ("[[rules]]\nname = 'a'", r"expected nothing but \[\[rule\]\] tables"),
        ("[[rule]\n", "not TOML: .*line 1"),
        ("[[rule]]\nmatch = 'abc'\nfamily = 'gemm'", "rule 1: 'name' is missing"),
        ("[[rule]]\nname = 'a'\nfamily = 'gemm'", r"rule 1 \(\"a\"\): 'match' is missing"),
        ("[[rule]]\nname = 'a'\nmatch = 'abc'", r"rule 1 \(\"a\"\): 'family' is missing"),
        (
            "[[rule]]\nname = 'a'\nmatch = 'abc'\nfamily = 'gem'",
            "family: 'gem' is not one of gemm, attention",
        ),
        (
            "[[rule]]\nname = 'a'\nmatch = 'abc'\nfamily = 'gemm'\nmath_unit = 'FP64'",
            "math_unit: 'FP64' is not one of tensor",
        ),
        (
            "[[rule]]\nname = 'a'\nmatch = 'abc'\nfamily = 'gemm'\nwhere = 'all'",
            "where: 'all' is not one of name, function",
        ),
        (
            "[[rule]]\nname = 'a'\nmatch = 'a(b'\nfamily = 'gemm'",
            r"expression 'a\(b' does not compile: missing \)",
        ),
        ("[[rule]]\nname = 'a'\nmatch = '.*'\nfamily = 'gemm'", r"expression '\.\*' matches every name"),
        (
            "[[rule]]\nname = 'a'\nmatch = []\nfamily = 'gemm'",
            "match: expected array of length >= 1",
        ),
        (
            "[[rule]]\nname = 'a'\nmatch = [1]\nfamily = 'gemm'",
            r"match\[0\]: expected str, got int",
        ),
        ("[[rule]]\nname = 1\nmatch = 'abc'\nfamily = 'gemm'", "rule 1: name: expected str, got int"),
        ("[[rule]]\nname = 'a'\nmatch = 'abc'\nfamily = ['gemm']", "family: expected str, got array"),
        ("[[rule]]\nname = 'a'\nmatch = 'abc'\nfamily = 'gemm'\nunit = 'x'", "unknown key 'unit'"),
        (
            "[[rule]]\nname = 'a'\nmatch = 'abc'\nfamily = 'gemm'\nonly = 'x'",
            "'only' needs where = \"words\"",
        ),
        (
            "[[rule]]\nname = 'a'\nmatch = 'abc'\nfamily = 'gemm'\nbackward = 1",
            "backward: expected bool, got int",
        ),
        ("[[rule]]\nname = 'a'\nmatch = 'abc'\nfamily = 'gemm'\ncause = 'to {dst}'", "cause uses {dst}"),
        (
            "[[rule]]\nname = 'a'\nmatch = 'b'\nfamily = 'gemm'\n[[rule]]\nname = 'c'",
            r"rule 2 \(\"c\"\): 'match' is missing",
        ),
    ],
)
def test_malformed_rule_files_say_file_rule_and_reason(tmp_path: Path, text: str, reason: str) -> None:
    """A bad rule file is refused in one line that names the file, the rule and what is wrong, with a hint."""
    path = write(tmp_path, text)
    with pytest.raises(NsysprofError, match=reason) as caught:
        load_rules(path)
    assert caught.value.message.startswith(f"{path}: ")
    assert "\n" not in caught.value.message
    assert str(kernel_rules.SHIPPED_RULES) in (caught.value.hint or "")


def test_unreadable_rule_files(tmp_path: Path) -> None:
    """A missing file, a directory and bytes that are not text are refused with a reason each."""
    with pytest.raises(NsysprofError, match=r"absent\.toml: cannot read the rule file: No such file"):
        load_rules(tmp_path / "absent.toml")
    with pytest.raises(NsysprofError, match="cannot read the rule file: Is a directory"):
        load_rules(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(NsysprofError, match=r"bytes.toml: no rule file: not UTF-8 text: byte 0"):
        load_rules(tmp_path / "bytes.toml")


def test_empty_input(rules: kernel_rules.Rules) -> None:
    """No names give no kinds, and an empty name is other."""
    assert classify(rules, []) == Kinds([], [], [], [], [])
    assert classify(rules, [""]).family == ["other"]


def test_twenty_thousand_names_are_quick(rules: kernel_rules.Rules) -> None:
    """20,000 distinct names take less than a second of CPU, on a busy machine too."""
    names = [f"{KNOWN[i % len(KNOWN)][0]}_{i}" for i in range(20_000)]
    best = 1e9
    for _ in range(3):
        start = time.process_time()
        classify(rules, names)
        best = min(best, time.process_time() - start)
    assert best < 1


def test_long_names_do_not_blow_up(rules: kernel_rules.Rules) -> None:
    """Names of many thousand characters with much to backtrack over take milliseconds, not minutes."""
    lambdas = TWINS[2][1].replace("12LoadWithCast", "4Load").replace("13StoreWithCast", "5Store")
    names = [
        lambdas[:-30] + "EEvRNS_18TensorIteratorBaseERKT_EUliE_" * 60,
        "void thrust::a<" + "thrust::cuda_cub::b<thrust::c<float>>, " * 100 + "int>(int)",
        "void cutlass::Kernel<" + "cutlass::gemm::threadblock::MmaX<cutlass::half_t>, " * 100 + ">(int)",
        "void f<" + "flashinfer::cusparse::at::native::" * 150 + "int>(int)",
        "a_" * 3000,
    ]
    start = time.process_time()
    assert classify(rules, names).family == ["copy", "other", "gemm", "other", "other"]
    assert time.process_time() - start < 1


# ---- names


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("void <unnamed>::softmax_warp_forward<float, (int)9>(T2 *)", "softmax_warp_forward"),
        (
            "void at::native::(anonymous namespace)::max_pool_forward_nchw<float>(int)",
            "at::native::max_pool_forward_nchw",
        ),
        (
            "std::enable_if<T2>(int)0&&vllm::_typeConvert<T1>::exists, void>::type vllm::fused<c10::Half>(T1 *)",
            "vllm::fused",
        ),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("cudapy::__main__::foo$241(Array<double, 2>)", "cudapy::__main__::foo"),
        ("_ZN2at6native13reduce_kernelILi512EEEvT_", "at::native::reduce_kernel"),
        (
            "_ZN2at6native12_GLOBAL__N_128vectorized_layer_norm_kernelIfEEvi",
            "at::native::vectorized_layer_norm_kernel",
        ),
        ("_Z9vectorAddPKfS0_Pfi", "vectorAdd"),
        ("_Z", "_Z"),
    ],
)
def test_function_name(name: str, function: str) -> None:
    """The function's qualified name comes out of demangled, mangled and plain names."""
    assert function_name(name) == function


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (TWINS[3][0], "vectorized_elementwise MulFunctor float"),
        (TWINS[3][1], "vectorized_elementwise MulFunctor float"),
        (TWINS[0][0], "elementwise where bool float"),
        (TWINS[1][0], "vectorized_elementwise float16_copy float"),
        (KNOWN[0][0], "vectorized_elementwise FillFunctor bool"),
        (
            "void <unnamed>::softmax_warp_forward<float, float, float, (int)11, (bool)0, (bool)0>(T2 *)",
            "softmax_warp_forward float 11",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(T1::Params)",
            "cutlass_80_simt_sgemm_256x128_8x4_nn_align1",
        ),
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas",
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_128x128x8_ffma",
        ),
        ("triton_poi_fused_0", "triton_poi_fused_0"),
        ("", ""),
    ],
)
def test_short_name(name: str, short: str) -> None:
    """A short name keeps the function, the functor, the type and the tile, and drops the rest."""
    assert short_name(name) == short


@pytest.mark.parametrize(
    ("name", "short", "function"),
    [
        ("__omp_offloading_10303_4e2ec6__Z4main_l21", "main:21 (OpenMP)", "main"),
        ("__omp_offloading_34_8975356_saxpy_l8", "saxpy:8 (OpenMP)", "saxpy"),
        ("__omp_offloading_4f_5896da36__ZN7gpumath13uniform_rangeIiEEvRNS_5ArrayIT_EE__l28", "uniform_range:28 (OpenMP)", "gpumath::uniform_range"),
        ("__omp_offloading_10303_4e2ec6__QMsolverPstep_l204", "step:204 (OpenMP)", "step"),
        ("nvkernel_solve_F1L204_2", "solve:204 (OpenMP)", "solve"),
        ("nvkernel_add2s2_omp__F1L1959_25_", "add2s2_omp:1959 (OpenMP)", "add2s2_omp"),
        ("nvkernel__ZN10coreneuron18solve_interleaved1Ei_F1L653_4", "solve_interleaved1:653 (OpenMP)", "coreneuron::solve_interleaved1"),
        ("kmeans_235_gpu", "kmeans:235 (OpenACC)", "kmeans"),
        ("kmeans_235_gpu__red", "kmeans:235 (OpenACC)", "kmeans"),
        ("__pgi_uacc_cuda_fill_42_gpu", "pgi_uacc_cuda_fill:42 (OpenACC)", "pgi_uacc_cuda_fill"),
        ("conv_2_gpu", "conv_2_gpu", "conv_2_gpu"),
        ("kmeans_235_gpu(float *)", "kmeans_235_gpu", "kmeans_235_gpu"),
        ("solve_$ck_L204_1", "solve:204 (Cray)", "solve"),
        ("main$_omp_fn$0", "main (GCC)", "main"),
        ("julia_vadd_kernel_1234(CuKernelContext, CuDeviceArray<Float32, (int)1, (int)1>)", "vadd (Julia)", "vadd_kernel"),
        ("_Z16julia_vadd__1234", "vadd (Julia)", "vadd"),
        ("gpu_broadcast_kernel_linear(CompilerMetadata<DynamicSize, DynamicCheck>, Int64)", "broadcast_kernel_linear (Julia)", "broadcast_kernel_linear"),
        ("cudapy::__main__::reduce_kernel[abi:v1,cw51cXTLSUwv](Array<long long, (int)1, C>)", "reduce (Numba)", "cudapy::__main__::reduce_kernel"),
        ("matmul_kernel_0d1d2d3de4de5de6de7c8de9c10de11c", "matmul (Triton)", "matmul_kernel"),
        ("src_solver_rk_stage_kernel_I6A6A6A6AcB6A6A_3c8d0c8e9d13eed8", "src_solver_rk_stage (Mojo)", "src_solver_rk_stage_kernel"),
        ("p16_naive_matmul_Layout_Int6A6AcB6A6AsA6A6A", "p16_naive_matmul (Mojo)", "p16_naive_matmul"),
        ("void Kokkos::Impl::cuda_parallel_launch_local_memory<Kokkos::Impl::ParallelFor<Push<double>, Kokkos::RangePolicy<Kokkos::Cuda>, Kokkos::Cuda>>(T1)", "Kokkos ParallelFor Push double", "Kokkos::Impl::cuda_parallel_launch_local_memory"),
    ],
)  # fmt: skip
def test_names_of_other_languages(name: str, short: str, function: str) -> None:
    """Regions of directives show function, line and language, functions of other languages their own name."""
    assert short_name(name) == short
    assert function_name(name) == function


def test_families_of_other_languages(rules: kernel_rules.Rules) -> None:
    """What a function is called decides about regions of directives too."""
    names = [
        "nvkernel_matmult_mkn_offload_F1L85_3",
        "__omp_offloading_34_8975356_saxpy_l8",
        "feed_input_23_gpu",
    ]
    names += [
        "gpu_broadcast_kernel_cartesian(CompilerMetadata<DynamicSize>)",
        "partial_mapreduce_grid(identity)",
    ]
    assert classify(rules, names).family == ["gemm", "elementwise", "other", "elementwise", "reduction"]


def test_short_names_fit_and_survive_damage() -> None:
    """No short name is longer than asked, whatever the input, and cut-off names do not fail."""
    for name in [name for name, _, _ in KNOWN] + [name for twins in TWINS for name in twins]:
        for cut in (len(name), len(name) * 2 // 3, len(name) // 3):
            assert 0 < len(short_name(name[:cut], 40)) <= 40
    assert short_name("x" * 100, 20) == "x" * 13 + "…" + "x" * 6


def test_short_names_tell_tiles_apart() -> None:
    """Two GEMMs that differ only in their tile keep different short names."""
    name = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize{}_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas"
    assert short_name(name.format("128x64x8")) != short_name(name.format("256x64x8"))
