package hub

import (
	"errors"
	"fmt"
	"strings"

	"github.com/myriad-go/myriad/tcp"
)

// Transactions of the Redis protocol. Commands between MULTI and EXEC are checked, answered with QUEUED, and left in
// the connection's unused input, which is charged to the client. Therefore a transaction has the limits of a single
// command: its size, and the time until it is complete. EXEC reads the queued commands again and runs them. If they
// exceed the budget of a batch, later batches run the rest, and other clients' messages may come in between.
//
// A client with subscriptions cannot use transactions, because a message must not interrupt the array in EXEC's reply.
// For the same reason, a transaction cannot subscribe.

// transaction is the state of a client between MULTI and EXEC.
type transaction struct {
	queuedCommands int
	queuedBytes    int  // bytes of queued commands, at the beginning of the unused input
	rejected       bool // EXEC will fail; nothing is queued any more
	tooLong        bool // the next command exceeds the size limit and gets an error
}

// transactionReserve is the number of bytes of a transaction's size limit that queued commands must leave free. The
// beginning of the next command needs this space.
const transactionReserve = 64

// reservedBytes returns how many bytes of the transaction's size limit are not available to the next command. tx may be
// nil.
func (tx *transaction) reservedBytes() int {
	if !tx.keepsQueue() {
		return 0
	}
	return tx.queuedBytes + transactionReserve
}

func (tx *transaction) keepsQueue() bool { return tx != nil && !tx.rejected }

func (tx *transaction) discardQueue() { tx.rejected, tx.queuedBytes = true, 0 }

// discardQueueIfTooLong discards the queued commands if err means that the next command exceeds the size limit.
func (tx *transaction) discardQueueIfTooLong(err error) (discarded bool) {
	if !tx.keepsQueue() || !errors.Is(err, tcp.ErrMessageTooLong) {
		return false
	}
	tx.discardQueue()
	tx.tooLong = true
	return true
}

func (s *respSession) transactionOrNil() *transaction {
	if s.sessionDetails == nil || s.unfinished == nil {
		return nil
	}
	return s.transaction
}

func (b *commandBatch) endTransaction() {
	b.updateSessionDetails(false, func(d *sessionDetails) { d.unfinished = nil })
}

// queueOrRejectTransaction counts a command as queued and replies QUEUED. If the command is invalid, it replies with an
// error, and EXEC will fail. If the invalid command is EXEC itself, the transaction ends.
func (b *commandBatch) queueOrRejectTransaction(tx *transaction, cmd *command, errorReply string) {
	switch {
	case errorReply != "" && equalsFold(b.args[0], "exec"):
		b.endTransaction()
		b.writeError("EXECABORT Transaction discarded because of: " + strings.TrimPrefix(errorReply, "ERR "))
		return
	case errorReply == "" && cmd.notInTransaction:
		errorReply = "ERR Command not allowed inside a transaction"
	case errorReply == "" && tx.tooLong:
		tx.tooLong = false
		errorReply = "ERR " + b.hub.countRefusal(fmt.Errorf("%w: the transaction is larger than %d bytes", errMessageTooLong, b.maxCommand)).Error()
	}
	if errorReply != "" {
		tx.discardQueue()
		b.writeError(errorReply)
		return
	}
	tx.queuedCommands++
	b.writeStatus("QUEUED")
}

func (b *commandBatch) handleMulti() {
	switch {
	case b.transactionOrNil() != nil:
		b.writeError("ERR MULTI calls can not be nested")
	case b.subscriptionCount() > 0: // RESP3
		b.writeError("ERR Can't execute 'multi' on a connection with subscriptions; use another connection")
	default:
		b.updateSessionDetails(true, func(d *sessionDetails) { d.unfinished = &unfinished{transaction: new(transaction)} })
		b.writeOK()
	}
}

func (b *commandBatch) handleDiscard() {
	if b.transactionOrNil() == nil {
		b.writeError("ERR DISCARD without MULTI")
		return
	}
	b.endTransaction()
	b.writeOK()
}

func (b *commandBatch) handleWatchWithoutEffect() {
	if b.transactionOrNil() != nil {
		b.writeError("ERR WATCH inside MULTI is not allowed")
		return
	}
	b.writeOK()
}

func (b *commandBatch) handleExec() {
	tx := b.transactionOrNil()
	switch {
	case tx == nil:
		b.writeError("ERR EXEC without MULTI")
		return
	case tx.rejected:
		b.endTransaction()
		b.writeError("EXECABORT Transaction discarded because of previous errors.")
		return
	}
	done := b.argsDone
	if done == 0 {
		b.writeArrayHeader(tx.queuedCommands)
	}
	b.commandLimits = newCommandLimits(b.maxCommand, false)
	for done < len(b.queue) {
		n, _ := b.parseOrResumeCommand(b.queue[done:], new(parseProgress)) // can't fail: it was parsed before
		done += n
		if len(b.args) == 0 {
			continue
		}
		if cmd, errorReply := b.lookUpPermittedCommand(); cmd == nil || !cmd.immediate { // others were answered at once
			b.work++
			b.replyErrorOrRun(cmd, errorReply)
		}
		if b.noReply {
			b.buf = b.buf[:0]
		}
		if done < len(b.queue) && b.flushIfFullAndYieldIfOverBudget(done) {
			return
		}
	}
	b.endTransaction()
}
