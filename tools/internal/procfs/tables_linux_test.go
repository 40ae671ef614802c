package procfs

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/internal/testkit"
)

// TestReadTables counts in the first table, and in that of a thread that has its own.
func TestReadTables(t *testing.T) {
	before := testkit.Must(CountDescriptorsByTable(os.Getpid()))(t)
	if len(before) != 1 {
		t.Fatalf("%d tables before any thread has its own: %+v", len(before), before)
	}
	const more = 10
	sock.RunOnNewThread(func() {
		release, err := sock.UnshareDescriptorTable(nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer release()
		var opened []int
		for range more {
			fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
			testkit.ExpectNoError(t, err)
			opened = append(opened, fd)
		}
		var tables []DescriptorTable
		elsewhere := make(chan struct{})
		go func() { // not on this thread, in whose table it would open a directory
			defer close(elsewhere)
			tables, err = CountDescriptorsByTable(os.Getpid())
		}()
		<-elsewhere
		if err != nil || len(tables) != 2 {
			t.Errorf("tables %+v, %v; want two", tables, err)
			return
		}
		// Its descriptors below sock.FirstPrivateFD are all taken, and none above but these.
		if own := tables[1]; own.Thread != unix.Gettid() || own.Open != sock.FirstPrivateFD+more {
			t.Errorf("the thread's own table is %+v, want thread %d with %d descriptors", own, unix.Gettid(), sock.FirstPrivateFD+more)
		}
		for _, fd := range opened {
			unix.Close(fd)
		}
	})
	// The kernel takes a moment to end the thread.
	testkit.WaitFor(t, "one table is left when the thread has ended", func() bool {
		after, err := CountDescriptorsByTable(os.Getpid())
		return err == nil && len(after) == 1
	})
}
