package examples

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// submitJobs sends HTTP requests as fast as they are answered, on 256 connections with 500 requests in flight each,
// until the server dies or the time is over.
func submitJobs(addr string, atMost time.Duration) {
	requests := bytes.Repeat([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), 500)
	end := time.Now().Add(atMost)
	var all sync.WaitGroup
	for range 256 {
		all.Go(func() {
			c, err := net.DialTimeout("tcp", addr, atMost)
			if err != nil {
				return
			}
			defer c.Close()
			c.SetDeadline(end.Add(5 * time.Second))
			r := bufio.NewReader(c)
			for time.Now().Before(end) {
				if _, err := c.Write(requests); err != nil {
					return
				}
				for range 500 {
					answer, err := http.ReadResponse(r, nil)
					if err != nil {
						return
					}
					if _, err := r.Discard(int(answer.ContentLength)); err != nil {
						return
					}
				}
			}
		})
	}
	all.Wait()
}

// TestOverloadInMemoryCgroup runs the published experiment in 512 MiB: the kernel kills the server that starts a
// goroutine for each job. The pool serves under the same load.
func TestOverloadInMemoryCgroup(t *testing.T) {
	group := testkit.NewMemoryCgroup(t, 512<<20)
	start := func(args ...string) (p *testkit.Process, addr string) {
		command := group.Command(append([]string{"env", "GOMEMLIMIT=400MiB", programPath(t, "overload"), "-addr", "127.0.0.1:0"}, args...)...)
		p = testkit.Start(t, exec.Command(command[0], command[1:]...))
		return p, p.WaitForOutput(` on (127\S+)\n`)[1]
	}
	naive, addr := start("-naive")
	submitJobs(addr, 30*time.Second)
	testkit.WantEqual(t, naive.ExitCode(), -1, "exit code of the server with a goroutine for each job, which is to be killed")

	pooled, addr := start()
	submitJobs(addr, 2*time.Second)
	answer, err := http.Get("http://" + addr + "/stats")
	if err != nil {
		t.Fatalf("the server with a pool does not answer: %v", err)
	}
	defer answer.Body.Close()
	var completed, inTime int
	if _, err := fmt.Fscanf(answer.Body, "%d jobs completed, %d within", &completed, &inTime); err != nil || completed < 100 || inTime == 0 {
		t.Errorf("%d jobs completed, %d in time, %v; want at least 100, and some in time", completed, inTime, err)
	}
	t.Logf("with a pool: %d jobs completed, %d within 100 ms", completed, inTime)
	pooled.Signal(os.Interrupt)
	testkit.WantEqual(t, pooled.ExitCode(), 0, "exit code of the server with a pool")
}
