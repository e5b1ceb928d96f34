/* Closed-loop load client: CONCURRENCY keep-alive connections, each with one request in flight, every reply checked.
 *
 *   load PORT PATH BODY_FILE CONCURRENCY SECONDS MIN_REQUESTS STREAM_EVENTS
 *
 * BODY_FILE holds one request body with sixteen 'N' after "nonce:"; each request gets its own sixteen hex digits there.
 * A reply counts only with status 200 and, without streaming, its nonce in the body; with STREAM_EVENTS > 0, exactly that
 * many events that carry the nonce, in order, and [DONE] at the end. New requests start until SECONDS have passed and
 * MIN_REQUESTS are done; those in flight are then waited for. The result is one JSON object on stdout.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { NONCE_LEN = 16, IN_MAX = 1 << 17, LEAD_MAX = 1 << 16, TIMEOUT_S = 60 };

enum framing { BY_LENGTH, CHUNKED, UNTIL_CLOSE };

struct conn {
    int fd, busy, head_done, status, keep_alive;
    enum framing framing;
    char lead[LEAD_MAX]; /* head of the request and its body up to and including the nonce */
    size_t lead_len, nonce_at, sent;
    char in[IN_MAX + 1]; /* head, then decoded body; of a stream only the event that is not complete yet */
    size_t in_len, head_len;
    uint64_t body_left, chunk_left;
    int chunk_state; /* 0 size line, 1 data, 2 CRLF after data, 3 trailer */
    char size_line[32];
    size_t size_len;
    int events, done_seen;
    uint64_t started_at, first_event_at;
};

struct samples {
    uint64_t *v;
    size_t n, cap;
};

static int port, concurrency, want_events, ep;
static double seconds;
static uint64_t min_requests, ok, started, nonce_counter, last_done_at, begin_at;
static uint64_t bad_status, bad_body, broken, reconnects, timeouts;
static int worst_status;
static char *rest; /* of the request body, after the nonce; shared by all connections */
static size_t rest_len;
static struct conn *conns;
static struct samples latency, ttft;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void keep_sample(struct samples *s, uint64_t v) {
    if (s->n == s->cap) {
        s->cap = s->cap ? s->cap * 2 : 4096;
        s->v = realloc(s->v, s->cap * sizeof *s->v);
        if (!s->v) die("realloc");
    }
    s->v[s->n++] = v;
}

static void build_requests(const char *path, const char *file) {
    struct stat st;
    int fd = open(file, O_RDONLY);
    if (fd < 0 || fstat(fd, &st) < 0) die(file);
    size_t len = (size_t)st.st_size;
    char *body = malloc(len + 1);
    for (size_t got = 0; got < len;) {
        ssize_t n = read(fd, body + got, len - got);
        if (n <= 0) die(file);
        got += (size_t)n;
    }
    close(fd);
    char *mark = memmem(body, len, "nonce:NNNNNNNNNNNNNNNN", 6 + NONCE_LEN);
    if (!mark) fprintf(stderr, "%s has no nonce\n", file), exit(2);
    size_t lead_body = (size_t)(mark - body) + 6 + NONCE_LEN;
    rest = body + lead_body, rest_len = len - lead_body;
    for (int i = 0; i < concurrency; i++) {
        struct conn *c = &conns[i];
        int n = snprintf(c->lead, LEAD_MAX,
                         "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: */*\r\nUser-Agent: load\r\n"
                         "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                         path, port, len);
        if ((size_t)n + lead_body > LEAD_MAX) fprintf(stderr, "the nonce is too far from the start\n"), exit(2);
        memcpy(c->lead + n, body, lead_body);
        c->lead_len = (size_t)n + lead_body;
        c->nonce_at = c->lead_len - NONCE_LEN;
    }
}

static void conn_open(struct conn *c) {
    int on = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&a, sizeof a) < 0) die("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e) < 0) die("epoll_ctl");
}

static void watch(struct conn *c, uint32_t events) {
    struct epoll_event e = {.events = events, .data.ptr = c};
    if (epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e) < 0) die("epoll_ctl");
}

static void conn_write(struct conn *c) {
    size_t total = c->lead_len + rest_len;
    while (c->sent < total) {
        struct iovec v[2];
        int n = 0;
        if (c->sent < c->lead_len) v[n++] = (struct iovec){c->lead + c->sent, c->lead_len - c->sent};
        size_t off = c->sent > c->lead_len ? c->sent - c->lead_len : 0;
        if (rest_len > off) v[n++] = (struct iovec){rest + off, rest_len - off};
        ssize_t done = writev(c->fd, v, n);
        if (done < 0 && errno == EAGAIN) {
            watch(c, EPOLLIN | EPOLLOUT);
            return;
        }
        if (done < 0) return; /* the read side tells why */
        c->sent += (size_t)done;
    }
    watch(c, EPOLLIN);
}

static int may_start(void) { return started < min_requests || (double)(now_ns() - begin_at) < seconds * 1e9; }

static void start_request(struct conn *c) {
    char hex[NONCE_LEN + 1];
    snprintf(hex, sizeof hex, "%016lx", ++nonce_counter * 0x9E3779B97F4A7C15u);
    memcpy(c->lead + c->nonce_at, hex, NONCE_LEN);
    c->busy = 1, c->head_done = 0, c->sent = 0, c->in_len = 0, c->events = 0, c->done_seen = 0, c->first_event_at = 0;
    started++;
    c->started_at = now_ns();
    conn_write(c);
}

static void finish(struct conn *c) {
    uint64_t now = now_ns();
    int good = 0;
    c->in[c->in_len] = 0;
    if (c->status != 200)
        bad_status++, worst_status = c->status;
    else if (want_events)
        good = c->events == want_events && c->done_seen;
    else
        good = memmem(c->in, c->in_len, c->lead + c->nonce_at, NONCE_LEN) != NULL;
    if (good) {
        ok++;
        keep_sample(&latency, now - c->started_at);
        if (want_events) keep_sample(&ttft, c->first_event_at - c->started_at);
    } else if (c->status == 200)
        bad_body++;
    last_done_at = now;
    c->busy = 0;
}

static void conn_reset(struct conn *c) {
    close(c->fd);
    reconnects++;
    conn_open(c);
}

static void next_request(struct conn *c) {
    if (!c->keep_alive || c->sent < c->lead_len + rest_len) conn_reset(c);
    if (may_start()) start_request(c);
}

/* One complete event, without its blank line. Events in order carry "<nonce>:<index>". */
static void on_event(struct conn *c, const char *event, size_t n) {
    char expect[NONCE_LEN + 16];
    if (n >= 12 && !memcmp(event, "data: [DONE]", 12)) {
        c->done_seen = 1;
        return;
    }
    int len = snprintf(expect, sizeof expect, "%.*s:%d", NONCE_LEN, c->lead + c->nonce_at, c->events);
    if (!c->first_event_at) c->first_event_at = now_ns();
    if (!c->done_seen && memmem(event, n, expect, (size_t)len)) c->events++;
}

static void take_body(struct conn *c, const char *data, size_t n) {
    if (c->in_len + n > IN_MAX) n = IN_MAX - c->in_len; /* too long to be ours: the check will fail */
    memcpy(c->in + c->in_len, data, n);
    c->in_len += n;
    if (!want_events || c->status != 200) return;
    char *from = c->in, *end;
    while ((end = memmem(from, c->in_len - (size_t)(from - c->in), "\n\n", 2))) {
        on_event(c, from, (size_t)(end - from));
        from = end + 2;
    }
    c->in_len -= (size_t)(from - c->in);
    memmove(c->in, from, c->in_len);
}

/* Decode chunked data. Returns 1 when the last chunk was seen, -1 on garbage. */
static int take_chunked(struct conn *c, const char *data, size_t n) {
    while (n) {
        if (c->chunk_state == 1) {
            size_t take = n < c->chunk_left ? n : c->chunk_left;
            take_body(c, data, take);
            data += take, n -= take, c->chunk_left -= take;
            if (!c->chunk_left) c->chunk_state = 2;
            continue;
        }
        if (c->size_len + 1 >= sizeof c->size_line) return -1;
        c->size_line[c->size_len++] = *data++, n--;
        if (c->size_line[c->size_len - 1] != '\n') continue;
        c->size_line[c->size_len] = 0, c->size_len = 0;
        if (c->chunk_state == 2)
            c->chunk_state = 0;
        else if (c->chunk_state == 3)
            return 1;
        else {
            c->chunk_left = strtoull(c->size_line, NULL, 16);
            c->chunk_state = c->chunk_left ? 1 : 3;
        }
    }
    return 0;
}

static int parse_head(struct conn *c, char *end) {
    *end = 0;
    if (sscanf(c->in, "HTTP/1.%*d %d", &c->status) != 1) return 0;
    char *length = strcasestr(c->in, "\r\ncontent-length:"), *coding = strcasestr(c->in, "\r\ntransfer-encoding: chunked");
    c->keep_alive = strcasestr(c->in, "\r\nconnection: close") == NULL;
    c->framing = coding ? CHUNKED : length ? BY_LENGTH : UNTIL_CLOSE;
    c->body_left = length ? strtoull(length + 17, NULL, 10) : 0;
    c->chunk_state = 0, c->size_len = 0, c->head_done = 1;
    return 1;
}

/* Returns 1 when the reply is complete, -1 on garbage. */
static int feed(struct conn *c, const char *data, size_t n) {
    if (!c->head_done) {
        size_t before = c->in_len;
        if (before + n > IN_MAX) return -1;
        memcpy(c->in + before, data, n);
        c->in_len += n, c->in[c->in_len] = 0;
        char *end = memmem(c->in, c->in_len, "\r\n\r\n", 4);
        if (!end) return 0;
        if (!parse_head(c, end)) return -1;
        size_t used = (size_t)(end + 4 - c->in) - before;
        data += used, n -= used, c->in_len = 0;
    }
    if (c->framing == CHUNKED) return take_chunked(c, data, n);
    take_body(c, data, n);
    if (c->framing == UNTIL_CLOSE) return 0;
    c->body_left -= n < c->body_left ? n : c->body_left;
    return c->body_left == 0;
}

static void on_lost(struct conn *c) {
    if (c->head_done && c->framing == UNTIL_CLOSE)
        finish(c);
    else if (c->busy)
        broken++, c->busy = 0;
    conn_reset(c);
    if (may_start()) start_request(c);
}

static void on_readable(struct conn *c) {
    static char buf[1 << 16];
    for (;;) {
        ssize_t n = recv(c->fd, buf, sizeof buf, 0);
        if (n < 0 && errno == EAGAIN) return;
        int state = n <= 0 || !c->busy ? -1 : feed(c, buf, (size_t)n);
        if (state < 0) {
            on_lost(c);
            return;
        }
        if (state) {
            finish(c);
            next_request(c);
            return;
        }
        if ((size_t)n < sizeof buf) return;
    }
}

static int any_busy(void) {
    uint64_t now = now_ns();
    int busy = 0;
    for (int i = 0; i < concurrency; i++) {
        struct conn *c = &conns[i];
        if (c->busy && now - c->started_at > TIMEOUT_S * 1000000000ull) timeouts++, c->busy = 0;
        busy |= c->busy;
    }
    return busy;
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double at(struct samples *s, double q) { return s->n ? (double)s->v[(size_t)(q * (double)(s->n - 1) + 0.5)] / 1e6 : -1; }

static void report(void) {
    qsort(latency.v, latency.n, sizeof *latency.v, by_value);
    qsort(ttft.v, ttft.n, sizeof *ttft.v, by_value);
    printf("{\"ok\":%lu,\"started\":%lu,\"bad_status\":%lu,\"worst_status\":%d,\"bad_body\":%lu,\"broken\":%lu,\"timeouts\":%lu,"
           "\"reconnects\":%lu,\"elapsed_s\":%.6f,\"p50_ms\":%.6f,\"p90_ms\":%.6f,\"p99_ms\":%.6f,\"min_ms\":%.6f,\"max_ms\":%.6f,"
           "\"ttft_p50_ms\":%.6f,\"ttft_p99_ms\":%.6f}\n",
           ok, started, bad_status, worst_status, bad_body, broken, timeouts, reconnects, (double)(last_done_at - begin_at) / 1e9,
           at(&latency, 0.5), at(&latency, 0.9), at(&latency, 0.99), at(&latency, 0), at(&latency, 1), at(&ttft, 0.5), at(&ttft, 0.99));
}

int main(int argc, char **argv) {
    struct epoll_event events[256];
    if (argc != 8) return fprintf(stderr, "usage: load PORT PATH BODY CONCURRENCY SECONDS MIN_REQUESTS STREAM_EVENTS\n"), 2;
    signal(SIGPIPE, SIG_IGN);
    port = atoi(argv[1]), concurrency = atoi(argv[4]), seconds = atof(argv[5]);
    min_requests = strtoull(argv[6], NULL, 10), want_events = atoi(argv[7]);
    conns = calloc((size_t)concurrency, sizeof *conns);
    if (!conns || (ep = epoll_create1(EPOLL_CLOEXEC)) < 0) die("start");
    build_requests(argv[2], argv[3]);
    for (int i = 0; i < concurrency; i++) conn_open(&conns[i]);
    nonce_counter = now_ns();
    begin_at = now_ns();
    for (int i = 0; i < concurrency; i++) start_request(&conns[i]);
    uint64_t checked_at = begin_at;
    for (int busy = 1; busy;) {
        int n = epoll_wait(ep, events, 256, 1000);
        if (n < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < n; i++) {
            struct conn *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) conn_write(c);
            if (events[i].events & ~(uint32_t)EPOLLOUT) on_readable(c);
        }
        if (n == 0 || !may_start() || now_ns() - checked_at > 1000000000u) busy = any_busy(), checked_at = now_ns();
    }
    report();
    return 0;
}
