package myriad

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/sock"
)

// These benchmarks measure fan-out: the same messages to many readers, which are a
// process of their own, so that the CPU time told is the sender's alone. They compare
// the models with each other, and with a plain program that gathers all messages of a
// burst and calls writev once for each reader:
//
//	go test -run '^$' -bench 'Burst|Ticks' -benchtime 5x .
//
// They fail if anything is lost or comes out of order, never for being slow.

// readersVariable tells a process of these tests to be the readers, and which.
const readersVariable = "MYRIAD_TEST_READERS"

// readers are what that process is asked for.
type readers struct {
	Addr string
	// Conns is how many connections, of which the first Mute never read.
	Conns, Mute int
	// Size is that of each message: its number, when it was sent by the
	// monotonic clock, and its burst's last number.
	Size int
	// Gaps lets numbers be left out, but for the last.
	Gaps bool
}

// heard is what the readers tell when the last message of a burst has reached all.
type heard struct {
	Messages int
	P50, P99 time.Duration // of the messages' age
}

func monotonic() int64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return now.Nano()
}

// stamp writes message number n of a burst that ends with number last.
func stamp(p []byte, n, last int) []byte {
	binary.BigEndian.PutUint64(p, uint64(n))
	binary.BigEndian.PutUint64(p[8:], uint64(monotonic()))
	binary.BigEndian.PutUint64(p[16:], uint64(last))
	return p
}

func init() {
	if os.Getenv(readersVariable) != "" {
		readersMain() // and no tests
	}
}

// readersMain is the readers' process: it ends with its input.
func readersMain() {
	var r readers
	err := json.Unmarshal([]byte(os.Getenv(readersVariable)), &r)
	if err == nil {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		}()
		err = r.run()
	}
	fmt.Fprintln(os.Stderr, "readers:", err)
	os.Exit(1)
}

// part is what a reader has got of its next message, and that message's number.
type part struct {
	n    int
	next uint64
	buf  []byte
}

func (r *readers) run() error {
	poll, err := sock.NewPoll(256)
	if err != nil {
		return err
	}
	parts := make(map[int32]*part)
	for i := range r.Conns {
		c, err := net.Dial("tcp", r.Addr)
		if err != nil {
			return err
		}
		if i < r.Mute {
			defer c.Close()
			_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
			continue
		}
		f, err := c.(*net.TCPConn).File()
		if err != nil {
			return err
		}
		c.Close()
		fd := int32(f.Fd())
		defer f.Close()
		parts[fd] = &part{buf: make([]byte, r.Size)}
		if errno := poll.Add(fd, fd, sock.In); errno != 0 {
			return errno
		}
	}
	fmt.Println("ready")
	out := json.NewEncoder(os.Stdout)
	in := make([]byte, 256<<10)
	var ages []time.Duration
	ended := 0
	for {
		for i := range poll.Wait(-1) {
			fd, _ := poll.Event(i)
			n, errno := sock.Recv(fd, in)
			if errno != 0 || n == 0 {
				return fmt.Errorf("a reader got %d bytes, %v", n, errno)
			}
			now := monotonic()
			for p, rest := parts[fd], in[:n]; len(rest) > 0; {
				got := copy(p.buf[p.n:], rest)
				rest = rest[got:]
				if p.n += got; p.n < r.Size {
					break
				}
				p.n = 0
				number, last := binary.BigEndian.Uint64(p.buf), binary.BigEndian.Uint64(p.buf[16:])
				if number < p.next || number > p.next && !r.Gaps {
					return fmt.Errorf("a reader got message %d when %d was due", number, p.next)
				}
				p.next = number + 1
				ages = append(ages, time.Duration(now-int64(binary.BigEndian.Uint64(p.buf[8:]))))
				if number == last {
					ended++
				}
			}
		}
		if ended == len(parts) {
			slices.Sort(ages)
			if err := out.Encode(heard{len(ages), ages[len(ages)/2], ages[len(ages)*99/100]}); err != nil {
				return err
			}
			ages, ended = ages[:0], 0
		}
	}
}

// audience is the readers' process.
type audience struct {
	b   *testing.B
	out *bufio.Reader
}

// listen starts readers, and waits until they are connected.
func (r readers) listen(b *testing.B) *audience {
	what, err := json.Marshal(r)
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), readersVariable+"="+string(what))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	a := &audience{b, bufio.NewReader(out)}
	if line, err := a.out.ReadString('\n'); line != "ready\n" {
		b.Fatalf("the readers say %q, %v", line, err)
	}
	return a
}

// heard waits until the last message has reached all.
func (a *audience) heard() (h heard) {
	line, err := a.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &h)
	}
	if err != nil {
		a.b.Fatalf("the readers say %q, %v", line, err)
	}
	return h
}

// processor is the CPU time that this process has used.
func processor() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// ways are the ways to send to all. They say whether a message is on its way to all.
var ways = []struct {
	name string
	gaps bool
	send func(s *Server, g *Group, p []byte) bool
}{
	{"Broadcast", false, func(s *Server, _ *Group, p []byte) bool { return s.Broadcast(p) == nil }},
	{"Group", false, func(_ *Server, g *Group, p []byte) bool {
		_, full := g.Broadcast(p)
		return full == 0
	}},
	{"Publish", true, func(_ *Server, g *Group, p []byte) bool {
		_, full := g.Publish(p)
		return full == 0
	}},
}

// onWays runs a benchmark for each way, under each model.
func onWays(b *testing.B, r readers, f func(b *testing.B, a *audience, s *Server, gaps bool, send func(p []byte) bool)) {
	for _, model := range Models() {
		for _, way := range ways {
			b.Run(model+"/"+way.name, func(b *testing.B) {
				var g Group
				// Loops: the readers need a processor, too.
				s := start(b, &Server{Model: model, Loops: 1, Handler: member{group: &g}, SlowConsumer: DropMessage,
					Socket: Socket{SendBuffer: 256 << 10}, Limits: Limits{MaxMail: 8 << 20, MaxMailBytes: 1 << 30}})
				r.Addr, r.Gaps = s.addr, way.gaps
				a := r.listen(b)
				for g.Len() < r.Conns {
					time.Sleep(time.Millisecond)
				}
				f(b, a, s.Server, way.gaps, func(p []byte) bool { return way.send(s.Server, &g, p) })
				if n := s.Stats().Dropped; n != 0 && r.Mute == 0 {
					b.Errorf("%d messages were dropped", n)
				}
			})
		}
	}
}

const (
	burst   = 300
	perTick = 10 * time.Millisecond
)

// BenchmarkBurst sends 300 messages of 100 bytes to 1,000 readers, as fast as they are
// taken.
func BenchmarkBurst(b *testing.B) {
	r := readers{Conns: 1000, Size: 100}
	onWays(b, r, func(b *testing.B, a *audience, s *Server, gaps bool, send func([]byte) bool) {
		messages := 0
		p := make([]byte, r.Size)
		before, cpu := s.Stats().Writes, processor()
		b.ResetTimer()
		for i := range b.N {
			for n := range burst {
				for !send(stamp(p, i*burst+n, i*burst+burst-1)) {
					runtime.Gosched()
				}
			}
			messages += a.heard().Messages
		}
		report(b, r, processor()-cpu, s.Stats().Writes-before)
		if messages != b.N*burst*r.Conns && !gaps {
			b.Errorf("%d messages have come, want %d", messages, b.N*burst*r.Conns)
		}
	})
	b.Run("writev", func(b *testing.B) { burstPlainly(b, r) })
}

// acceptPlainly gives the blocking sockets that readers have connected to.
func acceptPlainly(b *testing.B, r readers) (fds []int32, a *audience) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	var files []*os.File
	b.Cleanup(func() { // when the readers have ended
		for _, f := range files {
			f.Close()
		}
	})
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for range r.Conns {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			f, err := c.(*net.TCPConn).File() // a blocking one
			if err != nil {
				b.Errorf("File: %v", err)
				return
			}
			c.Close()
			files = append(files, f)
			fds = append(fds, int32(f.Fd()))
		}
	})
	r.Addr = ln.Addr().String()
	a = r.listen(b)
	accepting.Wait()
	return fds, a
}

// burstPlainly is what a plain program does: one writev for each reader.
func burstPlainly(b *testing.B, r readers) {
	fds, a := acceptPlainly(b, r)
	cpu := processor()
	b.ResetTimer()
	for i := range b.N {
		var all [][]byte
		for n := range burst {
			all = append(all, stamp(make([]byte, r.Size), i*burst+n, i*burst+burst-1))
		}
		for _, fd := range fds {
			if n, err := unix.Writev(int(fd), all); err != nil || n != burst*r.Size {
				b.Fatalf("writev: %d bytes, %v", n, err)
			}
		}
		a.heard()
	}
	report(b, r, processor()-cpu, int64(b.N*r.Conns))
}

func report(b *testing.B, r readers, cpu time.Duration, sends int64) {
	b.ReportMetric(float64(cpu.Microseconds())/1000/float64(b.N), "cpu-ms/op")
	b.ReportMetric(float64(sends)/float64(b.N)/float64(r.Conns), "sends/reader")
}

// ticksPlainly is what a plain program does: it goes round the readers, and each gets in
// one call all ticks that have come since. Those that take only a part are left alone.
func ticksPlainly(b *testing.B, r readers) {
	fds, a := acceptPlainly(b, r)
	ticks := b.N * int(time.Second/perTick)
	all := make([][]byte, ticks)
	var come atomic.Int64
	var ticking sync.WaitGroup
	cpu, sends := processor(), int64(0)
	b.ResetTimer()
	ticking.Go(func() {
		for n, began := 0, time.Now(); n < ticks; n++ {
			time.Sleep(time.Until(began.Add(time.Duration(n) * perTick)))
			all[n] = stamp(make([]byte, r.Size), n, ticks-1)
			come.Store(int64(n + 1))
		}
	})
	had := make([]int, len(fds))
	for left := len(fds); left > 0; {
		looked := sends
		for i, fd := range fds {
			now := all[had[i]:min(int(come.Load()), had[i]+64)]
			if len(now) == 0 {
				continue
			}
			sends++
			if n, errno := sock.SendAll(fd, now); errno != 0 || n < len(now)*r.Size {
				had[i] = ticks // it does not read
			} else {
				had[i] += len(now)
			}
			if had[i] == ticks {
				left--
			}
		}
		if sends == looked {
			time.Sleep(time.Millisecond)
		}
	}
	ticking.Wait()
	reportTicks(b, r, a.heard(), processor()-cpu, sends)
}

func reportTicks(b *testing.B, r readers, h heard, cpu time.Duration, sends int64) {
	report(b, r, cpu, sends)
	b.ReportMetric(float64(h.P50.Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(h.P99.Microseconds())/1000, "p99-ms")
}

// BenchmarkTicks sends 100 ticks a second to 5,000 readers, 50 of which never read. An
// operation is a second.
func BenchmarkTicks(b *testing.B) {
	r := readers{Conns: 5000, Mute: 50, Size: 200}
	onWays(b, r, func(b *testing.B, a *audience, s *Server, gaps bool, send func([]byte) bool) {
		p := make([]byte, r.Size)
		ticks := b.N * int(time.Second/perTick)
		before, cpu := s.Stats().Writes, processor()
		b.ResetTimer()
		for n, began := 0, time.Now(); n < ticks; n++ {
			time.Sleep(time.Until(began.Add(time.Duration(n) * perTick)))
			if !send(stamp(p, n, ticks-1)) {
				b.Errorf("no room for tick %d", n)
			}
		}
		h := a.heard()
		reportTicks(b, r, h, processor()-cpu, s.Stats().Writes-before)
		if want := ticks * (r.Conns - r.Mute); h.Messages != want && !gaps {
			b.Error(errors.New("some were lost"), h.Messages, want)
		}
	})
	b.Run("writev", func(b *testing.B) { ticksPlainly(b, r) })
}
