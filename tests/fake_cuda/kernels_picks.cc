#include "engine/cuda/picks.cu"
