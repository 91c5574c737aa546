#include "engine/cuda/kernels/conv_int8.cu"
