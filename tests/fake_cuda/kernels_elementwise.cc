#include "engine/cuda/kernels/elementwise.cu"
