#include "engine/cuda/conv_tensor.cu"
