#include "engine/cuda/images.cu"
