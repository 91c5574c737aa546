#include "engine/cuda/kernels/conv.cu"
