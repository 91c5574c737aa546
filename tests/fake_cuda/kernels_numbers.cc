#include "engine/cuda/kernels/numbers.cu"
