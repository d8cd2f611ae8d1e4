/* The most floating-point operations that a core reaches: chains of fused multiply-adds in registers, enough of them
   to hide their latency. Compiled for the processor it runs on. The values keep changing sign and mantissa, since
   constant ones draw less power and clock higher than real work does. */

#if defined(__AVX512F__)
#define LANES 16
#define CHAINS 24
#elif defined(__AVX__)
#define LANES 8
#define CHAINS 12
#else
#define LANES 4
#define CHAINS 12
#endif

typedef float vector __attribute__((vector_size(LANES * sizeof(float))));

/* Runs `rounds` multiply-adds on each chain; returns the floating-point operations, and through `sum` a value that
   depends on all of them. */
long long peak_run(long long rounds, float* sum) {
    vector chains[CHAINS], factor, addend;
    for (int lane = 0; lane < LANES; ++lane) {
        factor[lane] = -0.99991f - 1e-6f * lane;
        addend[lane] = 0.37f + 0.01f * lane;
        for (int chain = 0; chain < CHAINS; ++chain) chains[chain][lane] = 1.3f * chain - 0.7f * lane;
    }
    for (long long round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
        for (int chain = 0; chain < CHAINS; ++chain) chains[chain] = chains[chain] * factor + addend;
    }
    *sum = 0;
    for (int chain = 0; chain < CHAINS; ++chain)
        for (int lane = 0; lane < LANES; ++lane) *sum += chains[chain][lane];
    return rounds * CHAINS * LANES * 2;
}
