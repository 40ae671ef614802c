package sample

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// all are the parts that tests of everything read.
const all = CPU | Memory | PSS | Switches | Descriptors | Sockets | MachineCPU | MachineMemory | Network

// TestTake compares the kernel's values for this process and machine with known ones.
func TestTake(t *testing.T) {
	ln := testkit.Must(net.Listen("tcp4", "127.0.0.1:0"))(t)
	defer ln.Close()
	c := testkit.Must(net.Dial("tcp4", ln.Addr().String()))(t)
	defer c.Close()
	heap := make([]byte, 64<<20)
	for i := 0; i < len(heap); i += 4096 {
		heap[i] = 1
	}
	before, err := TakeSample(CPU|MachineCPU, os.Getpid())
	testkit.RequireNoError(t, err)
	var s Sample
	for { // until the kernel's steps of 10 ms have told of it
		if s, err = TakeSample(all, os.Getpid()); err != nil {
			t.Fatal(err)
		}
		if since := s.DifferenceSince(&before); since.Process.CPU() >= 50*time.Millisecond && since.Machine.Busy >= 50*time.Millisecond {
			if since.Machine.Busy > since.Length*time.Duration(runtime.NumCPU())+time.Second {
				t.Errorf("in %v the machine was busy for %v", since.Length, since.Machine.Busy)
			}
			break
		}
	}
	runtime.KeepAlive(heap)
	p := s.Processes[0]
	if p.PID != os.Getpid() || p.Threads < 1 || p.CPU() <= 0 || p.Voluntary <= 0 {
		t.Errorf("processor time and threads: %+v", p)
	}
	if p.RSS < 64<<20 || p.Anonymous < 64<<20 || p.PeakRSS < 64<<20 || p.PSS < 64<<20 || p.PSS > p.RSS {
		t.Errorf("memory: %+v", p)
	}
	if p.Sockets < 2 || p.Descriptors < p.Sockets+3 {
		t.Errorf("descriptors: %+v", p)
	}
	m := s.Machine
	if m.Total < 64<<20 || m.Free <= 0 || m.Free > m.Total || m.Slab <= 0 || m.PageTables <= 0 || m.KernelStacks <= 0 || m.FilePages <= 0 {
		t.Errorf("the machine's memory: %+v", m)
	}
	if m.Busy <= 0 || m.Idle < 0 || m.Established < 2 || m.Open < m.Established || m.Files < 2 {
		t.Errorf("the machine: %+v", m)
	}
}

// The processor time of another process has a finer resolution than the 10 ms of /proc/PID/stat.
func TestTakeCPUOfAnother(t *testing.T) {
	cmd := exec.Command("sh", "-c", "while :; do :; done")
	testkit.RequireNoError(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	before := testkit.Must(TakeSample(CPU, cmd.Process.Pid))(t)
	for {
		now := testkit.Must(TakeSample(CPU, cmd.Process.Pid))(t)
		since := now.DifferenceSince(&before)
		used := since.Process.CPU()
		if used%(10*time.Millisecond) != 0 {
			return
		}
		if used > 200*time.Millisecond {
			t.Fatalf("%v, and never anything but a multiple of 10 ms", used)
		}
	}
}

// TestTakeEnded checks that ended processes are omitted, and that it is an error if none is left.
func TestTakeEnded(t *testing.T) {
	cmd := exec.Command("true")
	testkit.RequireNoError(t, cmd.Start())
	pid := cmd.Process.Pid
	for { // a zombie has ended too
		s := testkit.Must(TakeSample(all, os.Getpid(), pid))(t)
		if len(s.Processes) == 1 {
			break
		}
	}
	if _, err := TakeSample(CPU, pid); !errors.Is(err, ErrEnded) {
		t.Errorf("a zombie: %v; want %v", err, ErrEnded)
	}
	testkit.RequireNoError(t, cmd.Wait())
	if _, err := TakeSample(all, pid); !errors.Is(err, ErrEnded) {
		t.Errorf("nobody: %v; want %v", err, ErrEnded)
	}
	if s, err := TakeSample(MachineMemory); err != nil || s.Machine.Total == 0 || len(s.Processes) != 0 {
		t.Errorf("the machine alone: %+v, %v", s, err)
	}
}

// TestSampler checks, in virtual time, that a slow part is read less often, and others always.
func TestSampler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Sampler
		_ = s.readAndMarkIfSlow(PSS, func() error { time.Sleep(slowRead + 1); return nil })
		_ = s.readAndMarkIfSlow(Switches, func() error { time.Sleep(slowRead); return nil })
		_ = s.readAndMarkIfSlow(MachineCPU, func() error { time.Sleep(time.Hour); return nil }) // does not grow with a process
		s.slow[PSS] = time.Now()
		for range 2 {
			time.Sleep(slowEvery - 1)
			if got, err := s.TakeSampleThrottlingSlowParts(PSS|Switches|MachineCPU, os.Getpid()); err != nil || got.Parts != Switches|MachineCPU || got.Processes[0].PSS != 0 {
				t.Errorf("parts %b, %v; want those that are quick", got.Parts, err)
			}
			time.Sleep(1 * time.Nanosecond)
			if got, err := s.TakeSampleThrottlingSlowParts(PSS, os.Getpid()); err != nil || got.Parts != PSS || got.Processes[0].PSS == 0 {
				t.Errorf("after %v parts %b, %v; want PSS", slowEvery, got.Parts, err)
			}
			s.slow[PSS] = time.Now()
		}
	})
}
