#include "engine/cuda/kernels/images.cu"
