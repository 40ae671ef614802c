// Package handover moves connections between engines of one or two processes; see
// [engine.Migrator].
//
// A channel is a unix socket that preserves message boundaries. At each end is an owner of
// connections: a loop, or an engine of goroutines. The receiver sends the first message, and one
// after each batch: how many connections have arrived since its last message, and how many more it
// can take, as two big-endian numbers of 4 bytes. The latter is credit, which adds up, or
// [noMoreCredit]. The sender sends batches: a byte that says where the records are, their number as
// a varint, and the records, along with one descriptor for each in the same order.
//
// A receiver has a limited number of places. The credit of one channel reduces that of all others
// until it is used or the channel ends. A channel for which there are no places gets no message,
// and its sender waits. When no channel has credit left, no more places can become free, and the
// receiver sends noMoreCredit to all that wait.
//
// The sender ends a channel in order by shutting it for writing, which releases unused credit; the
// receiver then closes it. Any other end means that the other side has ended, and the state of
// unconfirmed connections is unknown.
package handover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"syscall"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

const (
	recordsInline byte = iota + 1 // the message contains the records
	recordsInFile                 // the records are in a file, whose descriptor is the first

	// MaxBatch is the maximum number of connections in a batch.
	MaxBatch = 128
	// MaxBatchBytes is the maximum size of a batch's records, without the last one.
	MaxBatchBytes = 4 << 20
	// maxCredit is the maximum number of unconfirmed connections of a channel, which are lost if
	// the receiver dies.
	maxCredit = 2 * MaxBatch
	// maxRecordSize is the maximum size of a record: Limits allow 1 GiB of input and of output.
	maxRecordSize = 1<<31 - 1 - MaxBatchBytes
	// noMoreCredit instead of a credit means that none will follow.
	noMoreCredit = math.MaxUint32
)

var errBadBatch = errors.New("batch of connections is truncated or invalid")

func wrapExportError(err error) error {
	switch err {
	case io.ErrUnexpectedEOF, syscall.EPIPE, syscall.ECONNRESET:
		return fmt.Errorf("the importing process has gone: %w", err)
	}
	return fmt.Errorf("can't export connections: %w", err)
}

// importBatch calls importConn for each connection of a batch, which then owns the descriptor.
// There may be at most maxConns connections. Records refer to message. After an error it closes the
// remaining descriptors.
func importBatch(message []byte, fds []int32, maxConns int, importConn func(fd int32, r *engine.Record)) (err error) {
	n, size := binary.Uvarint(message[1:])
	records := message[1+max(size, 0):]
	switch {
	case size <= 0:
		err = errBadBatch
	case message[0] == recordsInFile && len(fds) > 0:
		records, err = sock.ReadAndCloseMemoryFile(fds[0], MaxBatchBytes+maxRecordSize)
		fds = fds[1:]
	}
	if err == nil && (n != uint64(len(fds)) || len(fds) > maxConns) {
		err = fmt.Errorf("batch of %d connections with %d descriptors; expected equal numbers of at most %d", n, len(fds), maxConns)
	}
	if err != nil {
		sock.Close(fds...)
		return err
	}
	return importEachRecord(fds, records, importConn)
}

// importEachRecord calls importConn for each record, even if a handler ends the goroutine with Goexit.
func importEachRecord(fds []int32, records []byte, importConn func(fd int32, r *engine.Record)) error {
	returned := false
	defer func() {
		if !returned {
			_ = importEachRecord(fds, records, importConn) // the error can't be returned
		}
	}()
	for len(fds) > 0 {
		r, rest, err := engine.ParseRecord(records)
		if err != nil {
			returned = true
			sock.Close(fds...)
			return err
		}
		fd := fds[0]
		fds, records = fds[1:], rest
		importConn(fd, &r)
	}
	returned = true
	return nil
}
