#include "engine/cuda/kernels/depthwise.cu"
