package examples

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/sample"
)

var (
	proxyTimes = flag.Int("proxy.times", 1, "how often TestProxy has everything echoed, by each kind of reader")
	proxyBytes = flag.Int("proxy.bytes", 60_000_000, "how many bytes that are")
)

// TestMain is also the plain proxy of the benchmark: io.Copy both ways.
func TestMain(m *testing.M) {
	if to := os.Getenv("PLAIN_PROXY"); to != "" {
		plainProxy(to)
	}
	os.Exit(m.Run())
}

func plainProxy(to string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println("proxy on", l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			os.Exit(1)
		}
		go func() {
			defer c.Close()
			up, err := net.Dial("tcp", to)
			if err != nil {
				return
			}
			defer up.Close()
			var both sync.WaitGroup
			for _, way := range [][2]*net.TCPConn{{c.(*net.TCPConn), up.(*net.TCPConn)}, {up.(*net.TCPConn), c.(*net.TCPConn)}} {
				both.Go(func() {
					io.Copy(way[1], way[0])
					way[1].CloseWrite()
				})
			}
			both.Wait()
		}()
	}
}

// proxyProgram is a proxy that runs.
type proxyProgram struct {
	name, addr string
	pid        int
}

// startProxy starts a program that prints where it listens, and kills it at the end.
func startProxy(t testing.TB, name string, cmd *exec.Cmd) proxyProgram {
	t.Helper()
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	var line bytes.Buffer
	for one := make([]byte, 1); ; line.Write(one) {
		if _, err := out.Read(one); err != nil {
			t.Fatalf("%s said %q, then %v", name, line.String(), err)
		} else if one[0] == '\n' {
			break
		}
	}
	return proxyProgram{name, strings.TrimPrefix(line.String(), "proxy on "), cmd.Process.Pid}
}

// proxies are the example under each model and, for comparison, io.Copy and HAProxy if
// that is installed.
func proxies(t testing.TB, to string) (all []proxyProgram) {
	program := filepath.Join(t.TempDir(), "proxy")
	if out, err := exec.Command("go", "build", "-o", program, "./proxy").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	for _, model := range []string{"goroutine", "epoll", "uring"} {
		all = append(all, startProxy(t, model, exec.Command(program, "-addr", "127.0.0.1:0", "-to", to, "-model", model)))
	}
	return all
}

func rivals(t testing.TB, to string) []proxyProgram {
	plain := exec.Command(os.Args[0])
	plain.Env = append(os.Environ(), "PLAIN_PROXY="+to)
	all := []proxyProgram{startProxy(t, "io.Copy", plain)}
	haproxy, err := exec.LookPath("haproxy")
	if err != nil {
		t.Log("without HAProxy, which is not installed")
		return all
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	for _, splice := range []string{"", "option splice-auto"} {
		cfg := filepath.Join(t.TempDir(), "haproxy.cfg")
		text := fmt.Sprintf("global\n maxconn 8000\n maxpipes 100\n nbthread 1\ndefaults\n mode tcp\n %s\n timeout connect 5s\n timeout client 1m\n timeout server 1m\nlisten p\n bind %s\n server s %s\n",
			splice, l.Addr(), to)
		if err := os.WriteFile(cfg, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(haproxy, "-db", "-q", "-f", cfg)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		name := "HAProxy"
		if splice != "" {
			name += ", splice"
		}
		all = append(all, proxyProgram{name, l.Addr().String(), cmd.Process.Pid})
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
	return all
}

// echoTarget is a plain echo server.
func echoTarget(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer c.Close()
				io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
			})
		}
	})
	t.Cleanup(func() { l.Close(); running.Wait() })
	return l.Addr().String()
}

// echoThrough has n bytes echoed through a proxy, by a reader that rests before each
// read, and checks them.
func echoThrough(addr string, n int, rest time.Duration) error {
	c, err := dialProxy(addr)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	sent := make(chan error, 1)
	go func() {
		piece := make([]byte, 64<<10)
		for at := 0; at < n; at += len(piece) {
			piece = piece[:min(len(piece), n-at)]
			fill(piece, at)
			if _, err := c.Write(piece); err != nil {
				sent <- fmt.Errorf("sending byte %d: %w", at, err)
				return
			}
		}
		sent <- c.(*net.TCPConn).CloseWrite()
	}()
	got, want, at := make([]byte, 256<<10), make([]byte, 256<<10), 0
	for {
		time.Sleep(rest)
		m, err := c.Read(got)
		fill(want[:m], at)
		if !bytes.Equal(got[:m], want[:m]) {
			return fmt.Errorf("wrong bytes from %d on", at)
		}
		if at += m; err == io.EOF && at == n {
			return <-sent
		}
		if err != nil {
			return errors.Join(fmt.Errorf("after %d bytes of %d: %w", at, n, err), <-sent)
		}
	}
}

// fill makes the bytes of a stream from a place on.
func fill(p []byte, at int) {
	for i := range p {
		p[i] = byte((at + i) ^ (at+i)>>8 ^ (at+i)>>16)
	}
}

// dialProxy connects, and tries again until the program listens.
func dialProxy(addr string) (c net.Conn, err error) {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if c, err = net.DialTimeout("tcp", addr, patience); err == nil {
			return c, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, err
}

// A proxy echoes for willing and for slow readers, and keeps little meanwhile.
func TestProxy(t *testing.T) {
	for _, p := range proxies(t, echoTarget(t)) {
		t.Run(p.name, func(t *testing.T) {
			if err := echoThrough(p.addr, 1<<20, 0); err != nil {
				t.Fatal(err)
			}
			before := resident(t, p.pid)
			for i := range *proxyTimes {
				for _, rest := range []time.Duration{0, time.Millisecond} {
					if err := echoThrough(p.addr, *proxyBytes, rest); err != nil {
						t.Fatalf("time %d, with a rest of %v: %v", i, rest, err)
					}
					if now := resident(t, p.pid); now > before+32<<20 {
						t.Fatalf("%d bytes are resident, %d at first", now, before)
					}
				}
			}
		})
	}
}

func resident(t testing.TB, pid int) int64 {
	m, err := sample.Take(sample.Memory|sample.PSS, pid)
	if err != nil {
		t.Fatal(err)
	}
	return m.Total().RSS
}

// BenchmarkProxy has 60 MB echoed by 1 and by 50 connections, by each proxy in turn, and
// gives the proxy's own CPU time.
func BenchmarkProxy(b *testing.B) {
	to := echoTarget(b)
	all := append(proxies(b, to), rivals(b, to)...)
	for _, conns := range []int{1, 50} {
		for round := range 3 {
			for _, p := range all {
				b.Run(fmt.Sprintf("conns=%d/round=%d/%s", conns, round+1, p.name), func(b *testing.B) {
					total := *proxyBytes
					b.SetBytes(int64(total))
					before := cpuTime(b, p.pid)
					for b.Loop() {
						var running sync.WaitGroup
						for range conns {
							running.Go(func() {
								if err := echoThrough(p.addr, total/conns, 0); err != nil {
									b.Error(err)
								}
							})
						}
						running.Wait()
					}
					spent := cpuTime(b, p.pid) - before
					b.ReportMetric(float64(spent.Microseconds())/float64(b.N)/(float64(total)/1e6), "cpu-µs/MB")
				})
			}
		}
	}
}

// BenchmarkProxyIdle holds connections open through each proxy, and gives its memory for
// each pair of them.
func BenchmarkProxyIdle(b *testing.B) {
	const conns = 2000 // io.Copy has four descriptors of pipes for each
	to := echoTarget(b)
	for _, p := range append(proxies(b, to), rivals(b, to)...) {
		b.Run(p.name, func(b *testing.B) {
			for b.Loop() {
				before := resident(b, p.pid)
				var held []net.Conn
				for range conns {
					c, err := dialProxy(p.addr)
					if err != nil {
						b.Fatal(err)
					}
					held = append(held, c)
				}
				for _, c := range held {
					io.WriteString(c, "x")
					if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(resident(b, p.pid)-before)/conns, "bytes/pair")
				for _, c := range held {
					c.Close()
				}
			}
		})
	}
}

// cpuTime is what a process has used.
func cpuTime(t testing.TB, pid int) time.Duration {
	taken, err := sample.Take(sample.CPU, pid)
	if err != nil {
		t.Fatal(err)
	}
	return taken.Processes[0].CPU()
}
