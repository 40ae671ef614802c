package main

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/load"
)

// TestServeLoadMetrics reads what a run tells of itself.
func TestServeLoadMetrics(t *testing.T) {
	var addr string
	observe, stop, err := serveLoadMetrics("127.0.0.1:0", func(at net.Addr) { addr = at.String() })
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	defer func() {
		if !stopped {
			stop()
		}
	}()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	get := func(path string) (status int, body string) {
		t.Helper()
		resp, err := client.Get("http://" + addr + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	if status, _ := get("/readyz"); status != http.StatusServiceUnavailable {
		t.Errorf("before the run: /readyz is %d; want 503", status)
	}
	observe(load.Event{Phase: load.Began, Plan: &load.Plan{Targets: []string{"a:1"}, Model: "epoll", Connections: 9}})
	observe(load.Event{Phase: load.Progress, Snapshot: load.Snapshot{Open: 7}, Interval: &load.Interval{Open: 7, Answered: 5}})
	if status, _ := get("/readyz"); status != http.StatusOK {
		t.Errorf("in the run: /readyz is %d; want 200", status)
	}
	_, body := get("/metrics")
	for _, want := range []string{"myriad_load_connections 7\n", "myriad_load_messages_answered_total 5\n", `myriad_load_latency_seconds{quantile="0.99"} NaN`, "go_goroutines "} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics lacks %q:\n%s", want, body)
		}
	}
	if _, body := get("/stats"); !strings.Contains(body, `"Open": 7`) && !strings.Contains(body, `"open": 7`) {
		t.Errorf("/stats lacks the 7 open connections:\n%s", body)
	}
	observe(load.Event{Phase: load.Done})
	if status, _ := get("/readyz"); status != http.StatusServiceUnavailable {
		t.Errorf("after the run: /readyz is %d; want 503", status)
	}
	stop()
	stopped = true
	if conn, err := net.Dial("tcp", addr); err == nil {
		conn.Close()
		t.Error("it is served after stop")
	}
}

func TestServeLoadMetricsRefuses(t *testing.T) {
	for _, addr := range []string{"nonsense", "127.0.0.1:none"} {
		if _, _, err := serveLoadMetrics(addr, nil); err == nil || !strings.HasPrefix(err.Error(), "--metrics: ") {
			t.Errorf("%q: got %v; want an error of --metrics", addr, err)
		}
	}
}
