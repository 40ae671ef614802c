package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// replyWriter encodes replies in RESP2 or RESP3 and appends them to buf.
type replyWriter struct {
	buf   []byte
	resp3 bool
}

func (r *replyWriter) writeHeader(typeByte byte, n int) {
	r.buf = append(r.buf, typeByte)
	r.buf = strconv.AppendInt(r.buf, int64(n), 10)
	r.buf = append(r.buf, "\r\n"...)
}

func (r *replyWriter) writeInt(n int)         { r.writeHeader(':', n) }
func (r *replyWriter) writeArrayHeader(n int) { r.writeHeader('*', n) }

// writeRESP3Header writes the header of a RESP3 type with n elements. For a RESP2 client, it instead writes the header
// of an array with resp2Count elements.
func (r *replyWriter) writeRESP3Header(typeByte byte, n, resp2Count int) {
	if r.resp3 {
		r.writeHeader(typeByte, n)
	} else {
		r.writeHeader('*', resp2Count)
	}
}

func (r *replyWriter) writeMapHeader(n int)  { r.writeRESP3Header('%', n, 2*n) }
func (r *replyWriter) writeSetHeader(n int)  { r.writeRESP3Header('~', n, n) }
func (r *replyWriter) writePushHeader(n int) { r.writeRESP3Header('>', n, n) }

func (r *replyWriter) writeBulk(s string)      { r.buf = appendBulk(r.buf, s) }
func (r *replyWriter) writeBulkBytes(p []byte) { r.buf = appendBulk(r.buf, p) }

func (r *replyWriter) writeBulksAndInts(values ...any) {
	for _, v := range values {
		if n, isInt := v.(int); isInt {
			r.writeInt(n)
		} else {
			r.writeBulk(v.(string))
		}
	}
}

func (r *replyWriter) writeStatus(s string) {
	r.buf = append(r.buf, '+')
	r.buf = append(r.buf, s...)
	r.buf = append(r.buf, "\r\n"...)
}

func (r *replyWriter) writeOK() { r.writeStatus("OK") }

func (r *replyWriter) writeNull() {
	if r.resp3 {
		r.buf = append(r.buf, "_\r\n"...)
	} else {
		r.buf = append(r.buf, "$-1\r\n"...)
	}
}

func (r *replyWriter) writeVerbatim(s string) {
	if !r.resp3 {
		r.writeBulk(s)
		return
	}
	r.writeHeader('=', len(s)+len("txt:"))
	r.buf = append(r.buf, "txt:"...)
	r.buf = append(r.buf, s...)
	r.buf = append(r.buf, "\r\n"...)
}

// writeError writes an error. codeAndText must begin with an error code such as ERR.
func (r *replyWriter) writeError(codeAndText string) {
	r.buf = append(r.buf, '-')
	for i := range len(codeAndText) {
		if c := codeAndText[i]; c == '\r' || c == '\n' {
			r.buf = append(r.buf, ' ')
		} else {
			r.buf = append(r.buf, c)
		}
	}
	r.buf = append(r.buf, "\r\n"...)
}

func (r *replyWriter) writeHelp(command string, lines ...string) {
	lines = slices.Concat([]string{command + " <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"}, lines,
		[]string{"HELP", "    Prints this help."})
	r.writeArrayHeader(len(lines))
	for _, l := range lines {
		r.writeStatus(l)
	}
}

const maxShownBytes = 128

func truncateForError(p []byte) string { return string(p[:min(len(p), maxShownBytes)]) }

// Some commands take too long for an event loop, or query all loops or other hubs. Examples are lists of topics or
// clients, and PUBSUB NUMSUB in a cluster. Each of these commands gets its own goroutine, but only one of them runs at
// a time. Until a command has ended, its connection is paused and retained, so that a graceful shutdown waits for the
// reply.

const (
	// maxBackgroundReplies limits the background commands that run or wait.
	maxBackgroundReplies   = 16
	backgroundReplyTimeout = 10 * time.Second
)

var errTooManyScans = errors.New("too many list requests; try again later")

// replyInBackground pauses the connection while another goroutine calls makeReply to write the reply. If makeReply
// returns an error, the connection closes after the reply. In a transaction, or if too many such replies are in
// progress, replyInBackground does not call makeReply, but replies with an error.
func (b *commandBatch) replyInBackground(makeReply func(ctx context.Context, r *replyWriter) error) {
	if b.transactionOrNil() != nil {
		b.writeError("ERR '" + b.command.name + "' takes too long for a transaction; send it without MULTI")
		return
	}
	if b.flushReplies(); b.closing {
		return
	}
	r, muted := replyWriter{resp3: b.resp3}, b.noReply
	err := b.hub.pauseAndReplyInBackground(b.conn, func(ctx context.Context) ([]byte, error) {
		closeReason := makeReply(ctx, &r)
		if muted {
			return nil, closeReason
		}
		return r.buf, closeReason
	})
	if err != nil {
		b.writeError("BUSY " + err.Error())
		return
	}
	b.stopped = true
}

// pauseAndReplyInBackground stops reading from c until another goroutine has called makeReply and sent its result. If
// makeReply returns an error, c closes. If too many such replies are in progress, pauseAndReplyInBackground fails.
func (h *Hub) pauseAndReplyInBackground(c *tcp.Conn, makeReply func(ctx context.Context) ([]byte, error)) error {
	if h.backgroundReplies.Add(1) > maxBackgroundReplies {
		h.backgroundReplies.Add(-1)
		return errTooManyScans
	}
	c.Retain()
	c.Pause()
	go h.makeAndSendReplyThenResume(c.Ref(), makeReply)
	return nil
}

func (h *Hub) makeAndSendReplyThenResume(ref tcp.Ref, makeReply func(ctx context.Context) ([]byte, error)) {
	h.backgroundReplyMu.Lock()
	ctx, cancel := context.WithTimeout(context.Background(), backgroundReplyTimeout)
	reply, closeReason := makeReply(ctx)
	cancel()
	h.backgroundReplyMu.Unlock()
	h.backgroundReplies.Add(-1)
	if len(reply) > 0 {
		if err := ref.Send(reply); err != nil {
			closeReason = noReplySpaceError(err)
		}
	}
	err := ref.Do(func(c *tcp.Conn) {
		if closeReason != nil {
			c.CloseWith(closeReason)
		}
		c.Resume()
		c.Release()
	})
	if errors.Is(err, tcp.ErrFull) {
		_ = ref.Close() // closing succeeds even if the mailbox is full
	}
}

func noReplySpaceError(err error) error { return fmt.Errorf("hub: no space for a reply: %w", err) }
