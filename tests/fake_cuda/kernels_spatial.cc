#include "engine/cuda/kernels/spatial.cu"
