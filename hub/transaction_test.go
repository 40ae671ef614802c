package hub

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

// TestTransactionTooLong checks that a transaction has the limit of a command, and that nothing of it is delivered.
func TestTransactionTooLong(t *testing.T) {
	h := new(Hub)
	s := serveVirtual(t, h, tcp.Limits{MaxMessage: 1000})
	publish := testkit.RESPCommand("PUBLISH", "a", strings.Repeat("x", 100))
	fit := (1000 - transactionReserve) / len(publish)
	const tooLong = "-ERR the message is too long: the transaction is larger than 1000 bytes\r\n"
	const aborted = "-EXECABORT Transaction discarded because of previous errors.\r\n"
	queued := func(n int) string { return strings.Repeat("+QUEUED\r\n", n) }
	for n, want := range map[int]string{
		fit:     queued(fit) + fmt.Sprintf("*%d\r\n", fit) + strings.Repeat(":0\r\n", fit),
		fit + 1: queued(fit) + tooLong + aborted,
		5 * fit: queued(fit) + tooLong + queued(4*fit-1) + aborted,
	} {
		p := s.Dial()
		for part := range slices.Chunk([]byte("MULTI\r\n"+strings.Repeat(publish, n)+"EXEC\r\nPING\r\n"), 7) {
			p.Send(string(part))
		}
		p.Expect("+OK\r\n" + want + "+PONG\r\n")
	}
	if s := h.Stats(); s.Published != int64(fit) || s.Refused.Messages != 2 {
		t.Errorf("%d messages are published, and %d transactions refused; want %d and 2", s.Published, s.Refused.Messages, fit)
	}
	// A command that is too long by itself still closes the connection.
	p := s.Dial()
	p.Send("MULTI\r\nPING\r\n*1\r\n$2000\r\n")
	p.Expect("+OK\r\n+QUEUED\r\n-ERR Protocol error: a command of at least 2013 bytes; at most 1000 are allowed\r\n")
	p.ExpectClosed(tcp.ErrMessageTooLong)
	// An open transaction is an incomplete message.
	p = s.Dial()
	p.Send("MULTI\r\nPING\r\n")
	s.Advance(time.Minute)
	p.ExpectClosed(tcp.ErrMessageTimeout)
}

// TestTransactionInBatches checks that EXEC of more work than a batch may do, and of more replies than MaxUnsent, runs
// each command once, and with CLIENT REPLY OFF replies nothing.
func TestTransactionInBatches(t *testing.T) {
	const n = 2 * maxBatchWork
	h := new(Hub)
	s := serveVirtual(t, h, tcp.Limits{MaxMessage: 1 << 20, MaxUnsent: 16 << 10})
	publishes := "MULTI\r\n" + strings.Repeat("PUBLISH a b\r\n", n) + "EXEC\r\n"
	p := s.Dial()
	p.Send(publishes + "PING\r\n")
	p.Expect("+OK\r\n" + strings.Repeat("+QUEUED\r\n", n) + fmt.Sprintf("*%d\r\n", n) + strings.Repeat(":0\r\n", n) + "+PONG\r\n")
	p.Send("CLIENT REPLY OFF\r\n" + publishes + "CLIENT REPLY ON\r\nPING\r\n")
	p.Expect("+OK\r\n+PONG\r\n")
	testkit.WantEqual(t, h.Stats().Published, 2*n, "published messages")
}

// TestSlowCommandInTransaction checks that a command that would have to wait is an error of EXEC.
func TestSlowCommandInTransaction(t *testing.T) {
	h := new(Hub)
	s := serveVirtual(t, h, tcp.Limits{})
	subscribeNames(t, h, Topic, topicNames(maxTopicsOnLoop+1)...)
	p := s.Dial()
	p.Send("MULTI\r\nPUBSUB CHANNELS\r\nPING\r\nCLIENT LIST\r\nEXEC\r\nMULTI\r\nPUBSUB CHANNELS\r\nPING\r\nEXEC\r\n")
	p.Expect("+OK\r\n+QUEUED\r\n+QUEUED\r\n-ERR Command not allowed inside a transaction\r\n-EXECABORT Transaction discarded because of previous errors.\r\n" +
		"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n-ERR 'pubsub|channels' takes too long for a transaction; send it without MULTI\r\n+PONG\r\n")
}

// saveAfterInput saves the state of a client after each input, as an upgrade would.
type saveAfterInput struct {
	redisOrHTTPHandler
	err *error
}

func (h saveAfterInput) Received(c *tcp.Conn, input []byte) (used int) {
	used = h.redisOrHTTPHandler.Received(c, input)
	_, *h.err = h.Save(c, nil)
	return used
}

// TestTransactionIsSavedLater checks that an upgrade waits until a transaction has ended.
func TestTransactionIsSavedLater(t *testing.T) {
	var saved error
	p := tcptest.NewServer(t, &tcp.Server{Handler: saveAfterInput{redisOrHTTPHandler{hub: new(Hub)}, &saved}}).Dial()
	for _, end := range []string{"EXEC\r\n", "DISCARD\r\n", "RESET\r\n"} {
		p.Send("MULTI\r\nPING\r\n")
		p.Expect("+OK\r\n+QUEUED\r\n")
		if !errors.Is(saved, tcp.ErrSaveLater) {
			t.Errorf("saving a transaction: %v, want %v", saved, tcp.ErrSaveLater)
		}
		p.Send(end)
		if p.Output() == "" || saved != nil {
			t.Errorf("after %q: %v", end, saved)
		}
	}
}

func TestLibraryTableIsBounded(t *testing.T) {
	var table libraryTable
	for i := range 2 * maxLibraries {
		l := clientLibrary{"lib", fmt.Sprint(i)}
		id := table.getOrAddID(l)
		if again := table.getOrAddID(l); (id == 0) != (i >= maxLibraries) || again != id || id != 0 && table.byID(id) != l {
			t.Fatalf("library %d has ID %d and then %d, which is %v", i, id, again, table.byID(id))
		}
	}
	if id := table.getOrAddID(clientLibrary{}); id != 0 || table.byID(0) != (clientLibrary{}) {
		t.Errorf("no library has ID %d", id)
	}
}
