// Package handover moves connections between engines, in the same or in different processes; see [engine.Migrator].
//
// A channel is a unix socket that preserves message boundaries. Each end belongs to an owner of connections: a loop, or
// an engine of package goroutine. The receiver sends the first message and a message after each batch. A message
// contains two big-endian 4-byte numbers: the connections that have arrived since the last message, and additional
// credit or [noMoreCredit]. Credit is the number of connections that the receiver can accept; it accumulates.
//
// The sender sends batches. A batch contains a byte for the location of the records (inline or in a file), their number
// (a varint), and the records. One descriptor for each record accompanies the batch, in the same order.
//
// The capacity of a receiver is limited. Credit that one channel has reduces the credit available to all others, until
// the credit is used or the channel ends. A channel without credit gets no message, and its sender waits. When no
// channel has credit left, no more capacity can become free, and the receiver sends noMoreCredit to all waiting
// senders.
//
// For an orderly end, the sender shuts the channel for writing, which releases unused credit; the receiver then closes
// the channel. Any other end means that the other endpoint has failed. It is then unknown which unconfirmed connections
// that endpoint has.
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
	recordsInFile                 // the records are in a file, whose descriptor comes first

	MaxBatch = 128
	// MaxBatchBytes limits the size of the records in a batch. Only the last record may cross this limit.
	MaxBatchBytes = 4 << 20
	maxCredit     = 2 * MaxBatch // bounds the connections that are lost if the receiver dies
	// maxRecordSize is the maximum size of a record in bytes. Limits allow 1 GiB each of input and output.
	maxRecordSize = 1<<31 - 1 - MaxBatchBytes
	noMoreCredit  = math.MaxUint32 // sent instead of a credit after the last credit
)

var errBadBatch = errors.New("batch of connections is truncated or invalid")

func wrapExportError(err error) error {
	switch err {
	case io.ErrUnexpectedEOF, syscall.EPIPE, syscall.ECONNRESET:
		return fmt.Errorf("the importing process has ended: %w", err)
	}
	return fmt.Errorf("can't export connections: %w", err)
}

// importBatch decodes message, a batch of connections, and calls importConn for each connection. fds are the
// descriptors that arrived with the message. importConn takes ownership of fd. The record r may refer to the memory of
// message. If the batch contains more than maxConns connections, importBatch imports none and returns an error. After
// any error, importBatch closes the descriptors that it has not passed to importConn.
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
		err = fmt.Errorf("batch has %d connections and %d descriptors; expected equal numbers, at most %d", n, len(fds), maxConns)
	}
	if err != nil {
		sock.Close(fds...)
		return err
	}
	return importEachRecord(fds, records, importConn)
}

// importEachRecord decodes the records and calls importConn for each record with the descriptor of the same index. If a
// record is invalid, importEachRecord returns an error and closes the descriptors of this record and of all following
// records.
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
