package sock

import (
	"os"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

func TestReceiveFDsAfterReset(t *testing.T) {
	pair, err := NewFDSocketpair()
	testkit.RequireNoError(t, err)
	ours := int32(pair[0].Fd())
	first := SendFDs(ours, []byte("unread"), nil)
	if second := SendFDs(int32(pair[1].Fd()), []byte("sent"), []int{int(os.Stdin.Fd())}); first != 0 || second != 0 {
		t.Fatal(first, second)
	}
	pair[1].Close()
	defer pair[0].Close()
	p := make([]byte, 10)
	n, fds, errno := ReceiveFDs(ours, p)
	if errno != 0 || string(p[:n]) != "sent" || len(fds) != 1 {
		t.Fatalf("received %q with %d descriptors, %v; want what was sent", p[:n], len(fds), errno)
	}
	Close(fds[0])
	if n, fds, errno = ReceiveFDs(ours, p); n != 0 || len(fds) != 0 || errno != syscall.Errno(0) {
		t.Errorf("behind it: %d bytes, %d descriptors, %v; want the end", n, len(fds), errno)
	}
}
