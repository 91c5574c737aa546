#include "engine/cuda/kernels/axes.cu"
