#include "engine/cuda/kernels/conv_tensor.cu"
