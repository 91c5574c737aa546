#include "engine/cuda/kernels/int8.cu"
