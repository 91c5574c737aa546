#include "engine/cuda/kernels/gather_scatter.cu"
