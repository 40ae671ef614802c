package procfs

import (
	"errors"
	"net"
	"os"
	"runtime"
	"slices"
	"testing"
)

// TestReaders reads what the kernel says of this very process.
func TestReaders(t *testing.T) {
	if runtime.GOOS != "linux" {
		if _, err := ReadMachine(); !errors.Is(err, ErrNotAvailable) {
			t.Fatalf("got %v, want ErrNotAvailable", err)
		}
		return
	}
	self := os.Getpid()
	s, err := ReadStat(self)
	if err != nil || s.PID != self || s.Threads < 1 {
		t.Errorf("ReadStat: got %+v, %v", s, err)
	}
	if children, err := Children(s.Parent); err != nil || !slices.Contains(children, self) {
		t.Errorf("the children of process %d are %v, %v; want %d among them", s.Parent, children, err, self)
	}
	if group, err := Group(s.Group); err != nil || !slices.Contains(group, self) {
		t.Errorf("Group: got %v, %v, want it to hold %d", group, err, self)
	}
	if m, err := ReadMemory(self); err != nil || m.RSS < 1<<20 {
		t.Errorf("ReadMemory: got %+v, %v", m, err)
	}
	if m, err := ReadMachine(); err != nil || m.Kernel == "" || m.CPUs < 1 || m.Memory < 1<<20 {
		t.Errorf("ReadMachine: got %+v, %v", m, err)
	}
	if m, err := ReadMeminfo(); err != nil || m.Slab <= 0 || m.Free <= 0 {
		t.Errorf("ReadMeminfo: got %+v, %v", m, err)
	}
	if c, err := ReadCPUs(); err != nil || c.All.Busy <= 0 {
		t.Errorf("ReadCPUs: got %+v, %v", c, err)
	}
}

func TestReadDescriptors(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no /proc")
	}
	before, err := ReadDescriptors(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
	}
	after, err := ReadDescriptors(os.Getpid())
	if err != nil || after.Sockets != before.Sockets+3 || after.Open < before.Open+3 {
		t.Errorf("got %+v, %v, want 3 sockets more than %+v", after, err, before)
	}
}

func TestGone(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no /proc")
	}
	const none = 1 << 30 // above the kernel's largest process id
	if _, err := ReadStat(none); !Gone(err) {
		t.Errorf("ReadStat: got %v, want an error that says gone", err)
	}
	if _, err := ReadMemory(none); !Gone(err) {
		t.Errorf("ReadMemory: got %v, want an error that says gone", err)
	}
	if _, err := ReadDescriptors(none); !Gone(err) {
		t.Errorf("ReadDescriptors: got %v, want an error that says gone", err)
	}
}
