#include "engine/cuda/kernels/pointwise.cu"
