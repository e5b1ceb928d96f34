/* Mock SGLang workers for router benchmarks: one process, one thread, one epoll loop, many listening ports.
 *
 * Written in C because a Python mock is slower than the routers under test. It never stores a body: it keeps the first
 * and last KEEP bytes, finds the client's nonce in the first and the end-of-image mark in the last, and echoes the nonce
 * in its answer, so that the client can tell its own reply from another's and a cut body from a whole one.
 *
 *   worker PORT:ROLE [PORT:ROLE ...]        ROLE is prefill or decode
 *
 * Control (any port): GET /mock/reset?events=64&gap_us=5000   zero the counters, set the shape of streams
 *                     GET /mock/stats                         counters of each port as JSON
 * A streamed decode answer has `events` chunks, sent one by one, `gap_us` apart (0: at once). A prefill answers a stream
 * with one chunk, as SGLang's prefill server does.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { KEEP = 8192, HEAD_MAX = 16384, NONCE_LEN = 16, MAX_LISTENERS = 16, MAX_FDS = 65536, READ_SIZE = 1 << 18 };
static const char NONCE_MARK[] = "nonce:";
static const char END_MARK[] = "ENDOFIMG";
/* vllm-router looks for these in a prefill answer and logs a warning for each request without them. */
static const char KV_PARAMS[] = ",\"kv_transfer_params\":{\"do_remote_prefill\":true,\"remote_engine_id\":\"mock\",\"remote_block_ids\":"
                                "[1],\"remote_host\":\"127.0.0.1\",\"remote_port\":1}";

struct listener {
    int fd, port, decode;
    uint64_t legs, streams, bad, other, bytes, accepted, open;
};

struct conn {
    int fd, in_body, is_stream;
    struct listener *at;
    char head[HEAD_MAX + 1];
    size_t head_len;
    uint64_t body_len, body_seen;
    char first[KEEP + 1], last[KEEP + 1]; /* of the body; `last` is right-aligned to the end of the body */
    char path[256], nonce[NONCE_LEN + 1];
    char *out; /* bytes the socket would not take yet */
    size_t out_len, out_cap;
    int events_left, events_sent;
    uint64_t due_ns; /* when the next event of a paced stream is due */
};

static struct listener listeners[MAX_LISTENERS];
static int n_listeners, ep;
static struct conn *conns[MAX_FDS];
static int streams[MAX_FDS], n_streams; /* fds with a paced stream under way */
static int cfg_events = 64;
static uint64_t cfg_gap_ns;
static char read_buf[READ_SIZE];

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void watch(struct conn *c, uint32_t events) {
    struct epoll_event e = {.events = events, .data.fd = c->fd};
    if (epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e) < 0) die("epoll_ctl");
}

static void forget_stream(int fd) {
    for (int i = 0; i < n_streams; i++)
        if (streams[i] == fd) {
            streams[i] = streams[--n_streams];
            return;
        }
}

static void conn_close(struct conn *c) {
    forget_stream(c->fd);
    c->at->open--;
    conns[c->fd] = NULL;
    close(c->fd);
    free(c->out);
    free(c);
}

/* Send now what the socket takes, keep the rest for EPOLLOUT. */
static void conn_send(struct conn *c, const char *data, size_t n) {
    if (c->out_len == 0) {
        ssize_t done = send(c->fd, data, n, MSG_NOSIGNAL);
        if (done == (ssize_t)n) return;
        if (done < 0 && errno != EAGAIN) return; /* the read side will see the reset */
        if (done > 0) data += done, n -= (size_t)done;
        watch(c, EPOLLIN | EPOLLOUT);
    }
    if (c->out_len + n > c->out_cap) {
        c->out_cap = (c->out_len + n) * 2;
        c->out = realloc(c->out, c->out_cap);
        if (!c->out) die("realloc");
    }
    memcpy(c->out + c->out_len, data, n);
    c->out_len += n;
}

static void conn_flush(struct conn *c) {
    ssize_t done = send(c->fd, c->out, c->out_len, MSG_NOSIGNAL);
    if (done <= 0) return;
    memmove(c->out, c->out + done, c->out_len - (size_t)done);
    c->out_len -= (size_t)done;
    if (c->out_len == 0) watch(c, EPOLLIN);
}

static void reply(struct conn *c, int status, const char *reason, const char *type, const char *body) {
    char buf[8192];
    int n = snprintf(buf, sizeof buf, "HTTP/1.1 %d %s\r\nserver: mock\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n%s",
                     status, reason, type, strlen(body), body);
    conn_send(c, buf, (size_t)n);
}

static void reply_json(struct conn *c, const char *body) { reply(c, 200, "OK", "application/json", body); }

static void send_chunk(struct conn *c, const char *payload) {
    char buf[1024];
    int n = snprintf(buf, sizeof buf, "%zx\r\n%s\r\n", strlen(payload), payload);
    conn_send(c, buf, (size_t)n);
}

static void send_event(struct conn *c) {
    char data[768];
    int i = c->events_sent++, end = --c->events_left == 0;
    snprintf(data, sizeof data,
             "data: {\"id\":\"mock\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"mock\",\"choices\":"
             "[{\"index\":0,\"delta\":{\"reasoning_content\":null,\"content\":\" %s:%d\"},\"logprobs\":null,"
             "\"finish_reason\":%s,\"matched_stop\":null}]}\n\n",
             c->nonce, i, end ? "\"stop\"" : "null");
    send_chunk(c, data);
    if (end) {
        send_chunk(c, "data: [DONE]\n\n");
        conn_send(c, "0\r\n\r\n", 5);
    }
}

static void start_stream(struct conn *c) {
    static const char head[] = "HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                               "transfer-encoding: chunked\r\n\r\n";
    conn_send(c, head, sizeof head - 1);
    c->events_sent = 0;
    c->events_left = c->at->decode ? cfg_events : 1;
    if (!cfg_gap_ns) {
        while (c->events_left) send_event(c);
        return;
    }
    send_event(c);
    if (!c->events_left) return;
    c->due_ns = now_ns() + cfg_gap_ns;
    streams[n_streams++] = c->fd;
}

static int find_nonce(struct conn *c) {
    size_t n = c->body_len < KEEP ? c->body_len : KEEP;
    char *p = memmem(c->first, n, NONCE_MARK, sizeof NONCE_MARK - 1);
    if (!p || p + sizeof NONCE_MARK - 1 + NONCE_LEN > c->first + n) return 0;
    memcpy(c->nonce, p + sizeof NONCE_MARK - 1, NONCE_LEN);
    c->nonce[NONCE_LEN] = 0;
    return memmem(c->last + (KEEP - n), n, END_MARK, sizeof END_MARK - 1) != NULL;
}

/* True when the client asked for a stream. Only the two ends are looked at: the large thing in between is an image. */
static int wants_stream(struct conn *c) {
    static const char *forms[] = {"\"stream\":true", "\"stream\": true"};
    size_t n = c->body_len < KEEP ? c->body_len : KEEP;
    for (int i = 0; i < 2; i++)
        if (memmem(c->first, n, forms[i], strlen(forms[i])) || memmem(c->last + (KEEP - n), n, forms[i], strlen(forms[i])))
            return 1;
    return 0;
}

static void serve_leg(struct conn *c) {
    char body[1024];
    c->at->legs++;
    if (!find_nonce(c)) {
        c->at->bad++;
        reply(c, 400, "Bad Request", "application/json",
              "{\"object\":\"error\",\"message\":\"no nonce or no end mark\",\"type\":\"BadRequestError\",\"param\":null,\"code\":400}");
        return;
    }
    if (wants_stream(c)) {
        c->at->streams++;
        start_stream(c);
        return;
    }
    if (!strncmp(c->path, "/generate", 9))
        snprintf(body, sizeof body,
                 "{\"text\":\"%s\",\"output_ids\":[1],\"meta_info\":{\"id\":\"mock\",\"finish_reason\":{\"type\":\"stop\"},"
                 "\"prompt_tokens\":8,\"completion_tokens\":1}}",
                 c->nonce);
    else if (!strncmp(c->path, "/v1/completions", 15))
        snprintf(body, sizeof body,
                 "{\"id\":\"mock\",\"object\":\"text_completion\",\"created\":1700000000,\"model\":\"mock\",\"choices\":[{\"index\":0,"
                 "\"text\":\"%s\",\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":8,"
                 "\"completion_tokens\":1,\"total_tokens\":9}}",
                 c->nonce);
    else
        snprintf(body, sizeof body,
                 "{\"id\":\"mock\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"mock\",\"choices\":[{\"index\":0,"
                 "\"message\":{\"role\":\"assistant\",\"content\":\"%s\"},\"logprobs\":null,\"finish_reason\":\"stop\"}],"
                 "\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":1,\"total_tokens\":9}%s}",
                 c->nonce, c->at->decode ? "" : KV_PARAMS);
    reply_json(c, body);
}

static void mock_reset(const char *query) {
    const char *p;
    if ((p = strstr(query, "events="))) cfg_events = atoi(p + 7);
    if ((p = strstr(query, "gap_us="))) cfg_gap_ns = (uint64_t)atoll(p + 7) * 1000;
    for (int i = 0; i < n_listeners; i++) {
        struct listener *l = &listeners[i];
        l->legs = l->streams = l->bad = l->other = l->bytes = l->accepted = 0;
    }
}

static void mock_stats(struct conn *c) {
    char body[4096];
    size_t n = (size_t)snprintf(body, sizeof body, "[");
    for (int i = 0; i < n_listeners; i++) {
        struct listener *l = &listeners[i];
        n += (size_t)snprintf(body + n, sizeof body - n,
                              "%s{\"port\":%d,\"role\":\"%s\",\"legs\":%lu,\"streams\":%lu,\"bad\":%lu,\"other\":%lu,"
                              "\"bytes\":%lu,\"accepted\":%lu,\"open\":%lu}",
                              i ? "," : "", l->port, l->decode ? "decode" : "prefill", l->legs, l->streams, l->bad, l->other,
                              l->bytes, l->accepted, l->open);
    }
    snprintf(body + n, sizeof body - n, "]");
    reply_json(c, body);
}

static void serve_info(struct conn *c, const char *path) {
    char body[1024];
    const char *mode = c->at->decode ? "decode" : "prefill";
    if (!strcmp(path, "/v1/models"))
        reply_json(c, "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\",\"created\":1700000000,"
                      "\"owned_by\":\"sglang\",\"root\":\"mock\",\"max_model_len\":32768}]}");
    else if (!strcmp(path, "/v1/loads")) {
        snprintf(body, sizeof body,
                 "{\"timestamp\":\"2026-01-01T00:00:00+00:00\",\"version\":\"0.5.23\",\"loads\":[{\"timestamp\":0,\"dp_rank\":0,"
                 "\"num_running_reqs\":0,\"num_waiting_reqs\":0,\"num_used_tokens\":0,\"num_total_tokens\":0,"
                 "\"max_total_num_tokens\":100000,\"max_running_requests\":256,\"token_usage\":0.0}]}");
        reply_json(c, body);
    } else if (strstr(path, "info")) {
        snprintf(body, sizeof body,
                 "{\"model_path\":\"mock\",\"served_model_name\":\"mock\",\"tokenizer_path\":\"mock\",\"is_generation\":true,"
                 "\"version\":\"0.5.23\",\"disaggregation_mode\":\"%s\",\"dp_size\":1,\"tp_size\":1,\"max_running_requests\":256,"
                 "\"internal_states\":[{\"disaggregation_mode\":\"%s\"}]}",
                 mode, mode);
        reply_json(c, body);
    } else if (strstr(path, "health") || !strcmp(path, "/abort_request") || !strcmp(path, "/flush_cache"))
        reply(c, 200, "OK", "text/plain", "");
    else
        reply(c, 404, "Not Found", "application/json", "{\"detail\":\"Not Found\"}");
}

static void serve(struct conn *c) {
    char *query = strchr(c->path, '?');
    if (query) *query++ = 0;
    if (!strcmp(c->path, "/v1/chat/completions") || !strcmp(c->path, "/v1/completions") || !strcmp(c->path, "/generate"))
        serve_leg(c);
    else if (!strcmp(c->path, "/mock/stats"))
        mock_stats(c);
    else if (!strcmp(c->path, "/mock/reset")) {
        mock_reset(query ? query : "");
        reply_json(c, "{}");
    } else {
        c->at->other++;
        serve_info(c, c->path);
    }
}

/* Parse a complete head. Returns 0 when it is not one that this mock understands. */
static int parse_head(struct conn *c) {
    char method[16];
    if (sscanf(c->head, "%15s %255s", method, c->path) != 2) return 0;
    char *length = strcasestr(c->head, "\r\ncontent-length:");
    if (strcasestr(c->head, "\r\ntransfer-encoding:")) return 0;
    c->body_len = length ? strtoull(length + 17, NULL, 10) : 0;
    c->body_seen = 0;
    if (strcasestr(c->head, "\r\nexpect: 100-continue")) conn_send(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    return 1;
}

static void keep_ends(struct conn *c, const char *data, uint64_t n) {
    uint64_t at = c->body_seen, tail_from = c->body_len > KEEP ? c->body_len - KEEP : 0;
    if (at < KEEP) memcpy(c->first + at, data, n < KEEP - at ? n : KEEP - at);
    if (at + n > tail_from) {
        uint64_t skip = at < tail_from ? tail_from - at : 0;
        uint64_t base = KEEP - (c->body_len - tail_from); /* where the tail begins inside `last` */
        memcpy(c->last + base + (at + skip - tail_from), data + skip, n - skip);
    }
}

/* Feed received bytes through head and body. Returns 0 when the connection is to be closed. */
static int feed(struct conn *c, const char *data, size_t n) {
    while (n || (c->in_body && c->body_seen == c->body_len)) {
        if (!c->in_body) {
            size_t take = n < HEAD_MAX - c->head_len ? n : HEAD_MAX - c->head_len, before = c->head_len;
            memcpy(c->head + before, data, take);
            c->head[before + take] = 0;
            char *end = memmem(c->head, before + take, "\r\n\r\n", 4);
            if (!end) {
                c->head_len += take;
                return c->head_len < HEAD_MAX;
            }
            size_t used = (size_t)(end + 4 - c->head) - before;
            end[2] = 0;
            data += used, n -= used;
            if (!parse_head(c)) return 0;
            c->in_body = 1, c->head_len = 0;
        }
        uint64_t left = c->body_len - c->body_seen, take = n < left ? n : left;
        if (take) keep_ends(c, data, take);
        c->body_seen += take, c->at->bytes += take;
        data += take, n -= take;
        if (c->body_seen == c->body_len) {
            c->in_body = 0;
            serve(c);
        }
    }
    return 1;
}

static void on_readable(struct conn *c) {
    for (int turns = 0; turns < 8; turns++) { /* bounded, so that one large body does not starve the others */
        ssize_t n = recv(c->fd, read_buf, sizeof read_buf, 0);
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0 || !feed(c, read_buf, (size_t)n)) {
            conn_close(c);
            return;
        }
        if ((size_t)n < sizeof read_buf) return;
    }
}

static void on_accept(struct listener *l) {
    int fd, on = 1;
    while ((fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        if (fd >= MAX_FDS) die("too many descriptors");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct conn *c = calloc(1, sizeof *c);
        if (!c) die("calloc");
        c->fd = fd, c->at = l, conns[fd] = c;
        l->accepted++, l->open++;
        struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
        if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e) < 0) die("epoll_ctl");
    }
}

static void add_listener(const char *spec) {
    struct listener *l = &listeners[n_listeners++];
    int on = 1;
    l->port = atoi(spec);
    l->decode = strstr(spec, ":decode") != NULL;
    l->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)l->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(l->fd, (struct sockaddr *)&a, sizeof a) < 0) die(spec);
    if (listen(l->fd, 1024) < 0) die("listen");
    struct epoll_event e = {.events = EPOLLIN, .data.fd = l->fd};
    if (epoll_ctl(ep, EPOLL_CTL_ADD, l->fd, &e) < 0) die("epoll_ctl");
}

/* Send the events that are due. Returns the nanoseconds until the next one, or -1 when no stream is under way. */
static int64_t run_streams(void) {
    uint64_t now = now_ns(), next = UINT64_MAX;
    for (int i = 0; i < n_streams;) {
        struct conn *c = conns[streams[i]];
        while (c->events_left && c->due_ns <= now) {
            send_event(c);
            c->due_ns += cfg_gap_ns;
        }
        if (!c->events_left) {
            streams[i] = streams[--n_streams];
            continue;
        }
        if (c->due_ns < next) next = c->due_ns;
        i++;
    }
    return n_streams ? (int64_t)(next > now ? next - now : 0) : -1;
}

int main(int argc, char **argv) {
    struct epoll_event events[256];
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2 || argc > MAX_LISTENERS + 1) return fprintf(stderr, "usage: worker PORT:prefill|decode ...\n"), 2;
    if ((ep = epoll_create1(EPOLL_CLOEXEC)) < 0) die("epoll_create1");
    for (int i = 1; i < argc; i++) add_listener(argv[i]);
    puts("ready");
    fflush(stdout);
    for (;;) {
        int64_t wait = run_streams();
        struct timespec t = {.tv_sec = wait / 1000000000, .tv_nsec = wait % 1000000000};
        int n = epoll_pwait2(ep, events, 256, wait < 0 ? NULL : &t, NULL);
        if (n < 0 && errno != EINTR) die("epoll_pwait2");
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd, is_listener = 0;
            for (int k = 0; k < n_listeners; k++)
                if (listeners[k].fd == fd) on_accept(&listeners[k]), is_listener = 1;
            if (is_listener || !conns[fd]) continue;
            if (events[i].events & EPOLLOUT && conns[fd]->out_len) conn_flush(conns[fd]);
            if (events[i].events & ~(uint32_t)EPOLLOUT) on_readable(conns[fd]);
        }
    }
}
