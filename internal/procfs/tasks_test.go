package procfs

import (
	"os"
	"runtime"
	"testing"
)

// TestCountTasks holds threads, which have to be counted.
func TestCountTasks(t *testing.T) {
	onlyLinux(t)
	const threads = 20
	ready, end := make(chan struct{}), make(chan struct{})
	defer close(end)
	for range threads {
		go func() {
			runtime.LockOSThread()
			ready <- struct{}{}
			<-end
		}()
	}
	for range threads {
		<-ready
	}
	n, err := CountTasks(uint32(os.Geteuid()))
	own, err2 := ReadStat(os.Getpid())
	if err != nil || err2 != nil || own.Threads < threads || n < threads {
		t.Errorf("got %d tasks, %v; this process has %d, %v", n, err, own.Threads, err2)
	}
	if n, err := CountTasks(1<<32 - 2); err != nil || n != 0 {
		t.Errorf("a user that has none: got %d, %v", n, err)
	}
	if all, err := CountAllTasks(); err != nil || all < threads {
		t.Errorf("got %d tasks of the machine, %v; want at least %d", all, err, threads)
	}
	_, tasks, err := tasksIn("/proc/self/task")
	if err != nil || tasks < threads {
		t.Errorf("got %d tasks of this process, %v; want at least %d", tasks, err, threads)
	}
}

func TestParseLoad(t *testing.T) {
	for in, want := range map[string]int64{"0.20 0.18 0.12 1/80 11206\n": 80, "": -1, "0 0 0 1 5": -1, "0 0 0 1/x 5": -1, "0 0 0 1/99999999999 5": -1, "0 0 1/80 5": -1} {
		got, err := parseLoad([]byte(in))
		if err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("%q: got %d, %v; want %d, -1 for an error", in, got, err, want)
		}
	}
}
