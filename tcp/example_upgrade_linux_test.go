package tcp_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/myriad-go/myriad/tcp"
)

// numbered numbers the lines of each client.
type numbered struct{}

func (numbered) Opened(c *tcp.Conn) { c.SetValue(uint64(0)) }

func (numbered) Message(c *tcp.Conn, line []byte) {
	n := c.Value().(uint64) + 1
	c.SetValue(n)
	fmt.Fprintf(c, "%d %s\n", n, line)
}

func (numbered) Closed(*tcp.Conn, error) {}

// numberedVersion is of what Save writes.
const numberedVersion = 1

func (numbered) Save(c *tcp.Conn, to []byte) ([]byte, error) {
	return binary.AppendUvarint(append(to, numberedVersion), c.Value().(uint64)), nil
}

func (numbered) Restore(c *tcp.Conn, state []byte) error {
	if len(state) < 2 || state[0] != numberedVersion {
		return errors.New("unsupported state version")
	}
	n, size := binary.Uvarint(state[1:])
	if size <= 0 {
		return errors.New("truncated state")
	}
	c.SetValue(n)
	return nil
}

// At SIGUSR2 a new process takes the place of this one: clients keep their connections and
// their numbers.
func ExampleServer_Upgrade() {
	srv := &tcp.Server{Addr: ":9000", Handler: tcp.Lines(numbered{})}
	upgrade := make(chan os.Signal, 1)
	signal.Notify(upgrade, syscall.SIGUSR2)
	go func() {
		for range upgrade {
			if _, err := srv.Upgrade(context.Background()); err != nil {
				log.Print(err) // and this process goes on
			}
		}
	}()
	if err := srv.ListenAndServe(context.Background()); err != nil {
		log.Print(err)
	}
}
