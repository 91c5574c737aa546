#include "engine/cuda/depthwise.cu"
