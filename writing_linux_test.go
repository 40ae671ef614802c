package myriad

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// This file measures what large answers cost the server: the CPU time of this process
// for a request. The client is a process of its own. All ways take turns, round by round,
// and what is reported is the median of the rounds:
//
//	go test -run '^$' -bench 'HeadAndBody|OfFile' -benchtime 15x .

// readerVariable makes this binary a client of the address in it.
const readerVariable = "MYRIAD_TEST_READER"

// perRound is how many requests each way gets in a round.
const perRound = 100

func init() {
	if os.Getenv(readerVariable) != "" {
		readerMain()
	}
}

// readerMain makes as many requests as it is told, one after the other, and says so.
func readerMain() {
	nc, err := net.Dial("tcp", os.Getenv(readerVariable))
	if err != nil {
		panic(err)
	}
	in, buf := bufio.NewScanner(os.Stdin), make([]byte, 512<<10)
	for in.Scan() {
		n, _ := strconv.Atoi(in.Text())
		for range n {
			if err := request(nc, buf); err != nil {
				panic(err)
			}
		}
		fmt.Println("done")
	}
	os.Exit(0)
}

// request asks for an answer and reads all of it.
func request(nc net.Conn, buf []byte) error {
	if _, err := io.WriteString(nc, "GET /file HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return err
	}
	for got, want := 0, -1; got != want; {
		n, err := nc.Read(buf[min(got, len(buf)/2):])
		if err != nil {
			return err
		}
		got += n
		if want < 0 {
			head, _, found := strings.Cut(string(buf[:min(got, 1000)]), "\r\n\r\n")
			_, length, _ := strings.Cut(head, "Content-Length: ")
			length, _, _ = strings.Cut(length, "\r\n")
			if size, err := strconv.Atoi(length); found && err == nil {
				want = len(head) + 4 + size
			}
		}
	}
	return nil
}

// way is a server and its client.
type way struct {
	name  string
	in    io.Writer
	out   *bufio.Scanner
	spent []time.Duration
}

func newWay(b *testing.B, name, addr string) *way {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), readerVariable+"="+addr)
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	return &way{name: name, in: in, out: bufio.NewScanner(out)}
}

// run makes the requests of a round.
func (w *way) run(b *testing.B) {
	before := processTime()
	fmt.Fprintln(w.in, perRound)
	if !w.out.Scan() {
		b.Fatalf("%s: the client has ended", w.name)
	}
	w.spent = append(w.spent, (processTime()-before)/perRound)
}

// processTime is the CPU time of this process.
func processTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // a valid call does not fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// compareWays runs all of them in turn and reports the medians.
func compareWays(b *testing.B, ways []*way) {
	for _, w := range ways {
		w.run(b) // warm
		w.spent = nil
	}
	for b.Loop() {
		for _, w := range ways {
			w.run(b)
		}
	}
	for _, w := range ways {
		slices.Sort(w.spent)
		b.ReportMetric(float64(w.spent[len(w.spent)/2].Nanoseconds())/1000, w.name+"-µs/req")
	}
}

// answers serves each request with one call, under a model.
func answers(b *testing.B, model, name string, answer func(c *Conn)) *way {
	srv := &Server{
		Addr: "127.0.0.1:0", Model: model, Loops: 1, Log: slog.New(slog.DiscardHandler),
		Limits: Limits{MaxUnsent: 8 << 20, Linger: 50 * time.Millisecond},
		Handler: Split(func(data []byte, _ bool) (int, []byte, error) {
			i := bytes.Index(data, []byte("\r\n\r\n"))
			if i < 0 {
				return 0, nil, nil
			}
			return i + 4, data[:i], nil
		}, MessageFunc(func(c *Conn, _ []byte) { answer(c) })),
	}
	ready := make(chan string, 1)
	srv.Listening = func(a net.Addr) { ready <- a.String() }
	ended := make(chan error, 1)
	go func() { ended <- srv.ListenAndServe(context.Background()) }()
	b.Cleanup(func() {
		srv.Close()
		<-ended
	})
	select {
	case addr := <-ready:
		return newWay(b, model+"-"+name, addr)
	case err := <-ended:
		b.Fatal(err)
		return nil
	}
}

// standard serves with net/http.
func standard(b *testing.B, h http.Handler) *way {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	srv, ended := &http.Server{Handler: h}, make(chan error, 1)
	go func() { ended <- srv.Serve(ln) }()
	b.Cleanup(func() {
		srv.Close()
		<-ended
	})
	return newWay(b, "net/http", ln.Addr().String())
}

func headOf(n int) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n", n)
}

func BenchmarkHeadAndBody(b *testing.B) {
	body := bytes.Repeat([]byte("0123456789abcdef"), 16<<10)
	head := headOf(len(body))
	joined, pieces := append([]byte(head), body...), [][]byte{[]byte(head), body}
	ways := []*way{standard(b, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.Write(body)
	}))}
	for _, model := range Models() {
		ways = append(ways,
			answers(b, model, "two", func(c *Conn) { c.WriteString(head); c.Write(body) }),
			answers(b, model, "joined", func(c *Conn) { c.Write(joined) }),
			answers(b, model, "writev", func(c *Conn) { c.Writev(pieces...) }))
	}
	compareWays(b, ways)
}

func BenchmarkAnswerOfFile(b *testing.B) {
	const size = 1 << 20
	path := filepath.Join(b.TempDir(), "file")
	if err := os.WriteFile(path, bytes.Repeat([]byte("0123456789abcdef"), size/16), 0o600); err != nil {
		b.Fatal(err)
	}
	head, room := headOf(size), make([]byte, size)
	ways := []*way{standard(b, http.FileServer(http.Dir(filepath.Dir(path))))}
	open := func(send func(c *Conn, f *os.File) error) func(c *Conn) {
		return func(c *Conn) {
			f, err := os.Open(path)
			if err == nil {
				c.WriteString(head)
				err = send(c, f)
				f.Close()
			}
			if err != nil {
				c.CloseWith(err)
			}
		}
	}
	for _, model := range Models() {
		ways = append(ways,
			answers(b, model, "sendfile", open(func(c *Conn, f *os.File) error { return c.SendFile(f, 0, -1) })),
			answers(b, model, "read+write", open(func(c *Conn, f *os.File) error {
				_, err := io.ReadFull(f, room) // of all models, which take turns
				if err == nil {
					_, err = c.Write(room)
				}
				return err
			})))
	}
	compareWays(b, ways)
}
