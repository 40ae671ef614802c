//go:build cgo

package main

/*
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { batch = 64, tick = 10 * 1000 * 1000 };

static long long now_ns(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void set(int fd, int option, int value) { setsockopt(fd, IPPROTO_TCP, option, &value, sizeof value); }

// accept_all accepts waiting connections and returns how many. With seconds > 0, the kernel probes them. If the table
// of descriptors is full, another thread accepts.
static int accept_all(int poll, int listener, char *is_open, int size, int seconds) {
	for (int n = 0;; n++) {
		int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), on = 1;
		if (fd < 0 || fd >= size) {
			if (fd >= 0 || errno != EAGAIN)
				epoll_ctl(poll, EPOLL_CTL_DEL, listener, NULL);
			if (fd >= 0)
				close(fd);
			return n;
		}
		set(fd, TCP_NODELAY, 1);
		if (seconds > 0) {
			setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
			set(fd, TCP_KEEPIDLE, seconds);
			set(fd, TCP_KEEPINTVL, seconds);
		}
		struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
		epoll_ctl(poll, EPOLL_CTL_ADD, fd, &e);
		is_open[fd] = 1;
	}
}

struct args {
	int listener, stop, size, keepalive;
	long long interval;
};

// serve_heartbeats discards the input of connections until stop is readable. In each interval it sends "ping\n" to
// every connection, spread evenly, or leaves it to the kernel to probe them. It has its own table of descriptors.
static void *serve_heartbeats(void *argument) {
	struct args a = *(struct args *)argument;
	int listener = a.listener, stop = a.stop, size = a.size, keepalive = a.keepalive;
	long long interval = a.interval;
	unshare(CLONE_FILES);
	char *is_open = calloc(size, 1), buf[4096];
	int poll = epoll_create1(EPOLL_CLOEXEC), fd = 0;
	struct epoll_event e = {.events = EPOLLIN, .data.fd = listener}, events[batch];
	if (is_open == NULL || poll < 0 || epoll_ctl(poll, EPOLL_CTL_ADD, listener, &e) != 0)
		abort();
	e.data.fd = stop;
	epoll_ctl(poll, EPOLL_CTL_ADD, stop, &e);
	long long open = 0, last = now_ns(), rest = 0, now;
	for (;;) {
		long long left = last + tick - now_ns();
		int n = epoll_wait(poll, events, batch, left > 0 ? (left + 999999) / 1000000 : 0);
		for (int i = 0; i < n; i++) {
			int from = events[i].data.fd;
			if (from == stop) {
				free(is_open);
				return NULL;
			}
			if (from == listener) {
				open += accept_all(poll, listener, is_open, size, keepalive ? interval / 1000000000 : 0);
				continue;
			}
			ssize_t got = recv(from, buf, sizeof buf, MSG_DONTWAIT);
			if (got == 0 || (got < 0 && errno != EAGAIN)) {
				is_open[from] = 0;
				open--;
				close(from);
			}
		}
		if ((now = now_ns()) < last + tick || keepalive)
			continue;
		rest += open * (now - last);
		last = now;
		for (; open > 0 && rest >= interval; rest -= interval) {
			do {
				if (++fd >= size)
					fd = 0;
			} while (!is_open[fd]);
			send(fd, "ping\n", 5, MSG_DONTWAIT | MSG_NOSIGNAL);
		}
	}
}
// serve_in_threads runs a thread for each table of descriptors.
static void serve_in_threads(int threads, struct args *a) {
	pthread_t all[threads];
	for (int i = 0; i < threads; i++)
		pthread_create(&all[i], NULL, serve_heartbeats, a);
	for (int i = 0; i < threads; i++)
		pthread_join(all[i], NULL);
}
*/
import "C"

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"
)

func init() {
	servers = append(servers, server{"c", "a loop in C that sends heartbeats", []app{{"sink", nil}}},
		server{"keepalive", "keep-alive probes of the kernel instead of heartbeats", []app{{"sink", nil}}})
}

// serveHeartbeatsInC serves the app sink with a loop in C.
func serveHeartbeatsInC(s settings) serveFunc {
	return func(ctx context.Context, ln net.Listener, ready func()) error {
		defer ln.Close()
		file, err := ln.(*net.TCPListener).File()
		if err != nil {
			return err
		}
		defer file.Close()
		done, stop, err := os.Pipe()
		if err != nil {
			return err
		}
		defer done.Close()
		var limit syscall.Rlimit
		listener := int(file.Fd()) // Fd makes it blocking
		if err := errors.Join(syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit), syscall.SetNonblock(listener, true)); err != nil {
			return err
		}
		end := context.AfterFunc(ctx, func() { stop.Close() })
		defer end()
		ready()
		size := int(min(limit.Cur, 1<<21))
		C.serve_in_threads(C.int(1+s.connections/size), &C.struct_args{
			listener: C.int(listener), stop: C.int(done.Fd()), size: C.int(size),
			keepalive: C.int(map[bool]int{true: 1}[s.server == "keepalive"]), interval: C.longlong(max(s.heartbeat, time.Second/10)),
		})
		return nil
	}
}
