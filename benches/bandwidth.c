// Linux. Read bandwidth by working set, threads and page size: the floor under a generation step.
//
// usage: bandwidth BYTES [THREADS [4k|2m [SECONDS]]]        build: cc -O3 -march=native -pthread bandwidth.c -o bandwidth
//        prints one JSON object: the median, the best and the tenths of all passes in GB/s (10^9), and the bytes
//        that huge pages held.
//
// One anonymous mapping, advised for or against huge pages and written once; each thread is bound to a CPU of the process's
// affinity and reads its own contiguous share, eight vectors at a time. A pass lasts from the first thread's start to
// the last one's end. The passes of the first tenth of the time are not counted.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

enum { MAX_THREADS = 256, MAX_PASSES = 100000 };
static const uint64_t CHUNK = 256; // bytes per inner iteration

static char *memory;
static uint64_t share_bytes;
static int threads, stop;
static pthread_barrier_t start_line, end_line;
static double begin_s[MAX_THREADS], end_s[MAX_THREADS], pass_gb_s[MAX_PASSES];
static volatile uint64_t sink;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static uint64_t read_all(const char *p, uint64_t n) {
#ifdef __AVX2__
    __m256i a[8];
    for (int i = 0; i < 8; i++) a[i] = _mm256_setzero_si256();
    for (uint64_t at = 0; at < n; at += CHUNK)
        for (int i = 0; i < 8; i++) a[i] = _mm256_xor_si256(a[i], _mm256_load_si256((const __m256i *)(p + at + 32 * i)));
    for (int i = 1; i < 8; i++) a[0] = _mm256_xor_si256(a[0], a[i]);
    return (uint64_t)_mm256_extract_epi64(a[0], 0) ^ (uint64_t)_mm256_extract_epi64(a[0], 3);
#else
    uint64_t a[8] = {0};
    for (uint64_t at = 0; at < n; at += CHUNK)
        for (int i = 0; i < 32; i++) a[i % 8] ^= *(const uint64_t *)(p + at + 8 * i);
    return a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];
#endif
}

static void bind_to_nth_cpu(int n) {
    cpu_set_t allowed, one;
    sched_getaffinity(0, sizeof allowed, &allowed);
    n %= CPU_COUNT(&allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && n-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            pthread_setaffinity_np(pthread_self(), sizeof one, &one);
            return;
        }
}

static void *worker(void *arg) {
    int i = (int)(intptr_t)arg;
    bind_to_nth_cpu(i);
    for (;;) {
        pthread_barrier_wait(&start_line);
        if (stop) return NULL;
        begin_s[i] = now_s();
        sink ^= read_all(memory + i * share_bytes, share_bytes);
        end_s[i] = now_s();
        pthread_barrier_wait(&end_line);
    }
}

// The bytes of our mapping that lie in huge pages, from /proc/self/smaps.
static uint64_t huge_bytes(void) {
    FILE *f = fopen("/proc/self/smaps", "r");
    if (!f) return 0;
    char line[512];
    uint64_t kib, total = 0, from, to;
    int ours = 0;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2 && strchr(line, '-') < strchr(line, ' '))
            ours = from <= (uint64_t)memory && (uint64_t)memory < to;
        else if (ours && sscanf(line, "AnonHugePages: %lu kB", &kib) == 1)
            total += kib * 1024;
    }
    fclose(f);
    return total;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: bandwidth BYTES [THREADS [4k|2m [SECONDS]]]\n");
        return 2;
    }
    uint64_t bytes = strtoull(argv[1], NULL, 10);
    threads = argc > 2 ? atoi(argv[2]) : 2;
    int huge = argc <= 3 || strcmp(argv[3], "2m") == 0;
    double seconds = argc > 4 ? atof(argv[4]) : 2.0;
    if (threads < 1 || threads > MAX_THREADS || bytes < (uint64_t)threads * CHUNK ||
        (!huge && strcmp(argv[3], "4k") != 0)) {
        fprintf(stderr, "bandwidth: bytes %s, threads %d, page %s: out of range\n", argv[1], threads, argc > 3 ? argv[3] : "2m");
        return 2;
    }
    share_bytes = bytes / threads / CHUNK * CHUNK;
    bytes = share_bytes * threads;

    const uint64_t page = 2 << 20;
    char *raw = mmap(NULL, bytes + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) {
        perror("bandwidth: mmap");
        return 1;
    }
    memory = (char *)(((uintptr_t)raw + page - 1) / page * page);
    uint64_t mapped = (bytes + page - 1) / page * page;
    madvise(raw, bytes + 2 * page, MADV_NOHUGEPAGE);
    if (huge) madvise(memory, mapped, MADV_HUGEPAGE);
    for (uint64_t at = 0; at < mapped; at += 8) *(uint64_t *)(memory + at) = at * 0x9E3779B97F4A7C15u;

    pthread_barrier_init(&start_line, NULL, threads + 1);
    pthread_barrier_init(&end_line, NULL, threads + 1);
    pthread_t id[MAX_THREADS];
    for (int i = 0; i < threads; i++) pthread_create(&id[i], NULL, worker, (void *)(intptr_t)i);

    int passes = 0;
    double from = now_s();
    while (passes < 3 || (passes < MAX_PASSES && now_s() - from < seconds)) {
        pthread_barrier_wait(&start_line);
        pthread_barrier_wait(&end_line);
        double first = begin_s[0], last = end_s[0];
        for (int i = 1; i < threads; i++) {
            if (begin_s[i] < first) first = begin_s[i];
            if (end_s[i] > last) last = end_s[i];
        }
        if (now_s() - from >= seconds / 10) pass_gb_s[passes++] = bytes / (last - first) * 1e-9;
    }
    stop = 1;
    pthread_barrier_wait(&start_line);
    for (int i = 0; i < threads; i++) pthread_join(id[i], NULL);

    printf("{\"bytes\": %lu, \"threads\": %d, \"page\": \"%s\", \"huge_bytes\": %lu, ", bytes, threads, huge ? "2m" : "4k",
           huge_bytes());
    double *order = malloc(passes * sizeof *order);
    memcpy(order, pass_gb_s, passes * sizeof *order);
    qsort(order, passes, sizeof *order, ascending);
    printf("\"median_gb_per_s\": %.3f, \"best_gb_per_s\": %.3f, \"passes\": %d, \"tenths_gb_per_s\": [", order[passes / 2],
           order[passes - 1], passes);
    for (int i = 0; i <= 10; i++) printf("%s%.3f", i ? ", " : "", order[(passes - 1) * i / 10]);
    printf("]}\n");
    free(order);
    return 0;
}
