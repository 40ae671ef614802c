package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

const noChannelPermissionReply = "NOPERM this user has no permissions to access one of the channels used as arguments"

const overloadedReply = "BUSY the server is overloaded, try again later"

func (b *commandBatch) handlePublish(kind Kind) {
	if b.conn.ShouldShed() {
		b.writeError(overloadedReply)
		return
	}
	if b.subscriptionCount() > 0 { // the client receives earlier replies, its own message, and then the count
		b.flushReplies()
	}
	spentBefore := b.hub.patternIndex.spentWork.Load()
	n, err := b.hub.authorizeAndPublish(b.user, b.countPublishWithinRate, kind, string(b.args[1]), b.args[2])
	if err != nil {
		b.writeErrorReply(err)
		return
	}
	b.work += n/receiversPerWork + int(b.hub.patternIndex.spentWork.Load()-spentBefore)/matchUnitsPerWork
	b.writeInt(n)
}

func (b *commandBatch) writeErrorReply(err error) {
	if errors.Is(err, errDenied) {
		b.writeError(noChannelPermissionReply)
	} else {
		b.writeError("ERR " + err.Error())
	}
}

// handleSubscribe subscribes the client to the names in the command. If the user lacks the right to one of the names,
// the client is subscribed to none of them. After any other error, handleSubscribe skips the remaining names.
func (b *commandBatch) handleSubscribe(kind Kind, verb string) {
	names, first := b.args[1:], b.argsAlreadyDone()
	for _, name := range names {
		if first == 0 && !b.user.maySubscribe(kind, string(name)) {
			b.writeErrorReply(b.hub.countRefusal(errDenied))
			return
		}
	}
	b.confirmVerb = verb
	for i := first; i < len(names); i++ {
		if i > first && b.flushIfFullAndYieldIfOverBudget(i) {
			return
		}
		b.confirmName = string(names[i])
		if err := b.hub.subscribe(&b.client, b.ref, kind, b.confirmName, b.onSubscribed); err != nil {
			b.writeErrorReply(err)
			break
		}
		b.work++
		if kind == Pattern { // compiled
			b.work += len(b.confirmName) / patternBytesPerWork
		}
	}
	b.clearArgsDoneAndOrderReplies()
}

// handleUnsubscribe ends the client's subscriptions to the names in the command. If the command contains no names,
// handleUnsubscribe ends all subscriptions of the given kind.
func (b *commandBatch) handleUnsubscribe(kind Kind, verb string) {
	names, first := b.args[1:], b.argsAlreadyDone()
	if len(names) > 0 {
		names = names[first:]
	} else {
		all := b.client.subscriptionNames(kind)
		slices.Sort(all)
		names = make([][]byte, len(all))
		for i, name := range all {
			names[i] = []byte(name)
		}
	}
	b.confirmVerb = verb
	for i, name := range names {
		if i > 0 && b.flushIfFullAndYieldIfOverBudget(first+i) {
			return
		}
		b.confirmName = string(name)
		b.hub.unsubscribe(&b.client, b.ref, kind, b.confirmName)
		b.writeConfirmation(b.subscriptionCountForConfirmation(kind))
		b.work++
	}
	if first == 0 && len(names) == 0 {
		b.writePushHeader(3)
		b.writeBulk(verb)
		b.writeNull()
		b.writeInt(b.subscriptionCountForConfirmation(kind))
	}
	b.clearArgsDoneAndOrderReplies()
}

// confirmSubscription confirms a subscription to the client. Call it before messages of the topic can arrive.
func (b *commandBatch) confirmSubscription(subscriptionCount int) {
	b.writeConfirmation(subscriptionCount)
	if b.repliesInMessageOrder {
		b.flushReplies()
	}
}

func (b *commandBatch) writeConfirmation(subscriptionCount int) {
	b.writePushHeader(3)
	b.writeBulk(b.confirmVerb)
	b.writeBulk(b.confirmName)
	b.writeInt(subscriptionCount)
}

func (b *commandBatch) argsAlreadyDone() int {
	if b.sessionDetails == nil || b.unfinished == nil {
		return 0
	}
	return b.argsDone
}

// flushIfFullAndYieldIfOverBudget sends the replies if their buffer is full. If the batch has used up its budget, the
// method suspends the command after the first argsDone arguments, and a later batch processes the remaining arguments.
// If stop is true, the caller must return.
func (b *commandBatch) flushIfFullAndYieldIfOverBudget(argsDone int) (stop bool) {
	if len(b.buf) >= b.flushSize() {
		b.flushReplies()
	}
	if !b.stopped && b.overBudget() {
		b.switchToMessageOrderIfSubscribed()
		b.updateSessionDetails(true, func(d *sessionDetails) {
			d.unfinished = &unfinished{argsDone: argsDone, transaction: b.transactionOrNil()}
		})
		if b.noReply {
			b.replyFlags |= skipNextReply // applies to the rest of the command
		}
		b.yieldToOtherConns()
	}
	return b.stopped
}

func (b *commandBatch) clearArgsDoneAndOrderReplies() {
	b.updateSessionDetails(false, func(d *sessionDetails) { d.unfinished = nil })
	b.switchToMessageOrderIfSubscribed()
}

// switchToMessageOrderIfSubscribed sends all later replies through the client's message queue if the client has
// subscriptions. The client then receives replies and messages in the order in which they were queued.
func (b *commandBatch) switchToMessageOrderIfSubscribed() {
	if !b.repliesInMessageOrder && b.subscriptionCount() > 0 {
		b.flushReplies()
		b.repliesInMessageOrder = true
	}
}

func (b *commandBatch) handlePubsubChannels(kind Kind) {
	if len(b.args) > 3 {
		b.writeError("ERR unknown subcommand or wrong number of arguments for '" + truncateForError(b.args[1]) + "'. Try PUBSUB HELP.")
		return
	}
	pattern := "*"
	if len(b.args) == 3 {
		pattern = string(b.args[2])
	}
	h, maxBytes := b.hub, b.maxUnsent/4
	slow := h.Cluster != nil || h.tableForKind(kind).count.Load() > maxTopicsOnLoop
	b.replyInBackgroundIf(slow, func(ctx context.Context, r *replyWriter) {
		r.writeTopicListOrError(ctx, h, kind, pattern, maxBytes)
	})
}

// maxTopicsOnLoop is the largest number of topics that a command may search on the event loop. If there are more
// topics, another goroutine searches them.
const maxTopicsOnLoop = 1000

// writeTopicListOrError writes the names that match pattern and have subscribers. If the names exceed maxBytes, it
// writes an error instead.
func (r *replyWriter) writeTopicListOrError(ctx context.Context, h *Hub, kind Kind, pattern string, maxBytes int) {
	found, omitted := h.namesOnOtherHubs(ctx, kind, pattern, maxBytes)
	size, matches := 0, Matcher(pattern)
	for _, name := range found {
		size += len(name) + len("$1024\r\n\r\n")
	}
	h.EachName(kind, func(name string, _ int) bool {
		if matches(name) {
			found = append(found, name)
			size += len(name) + len("$1024\r\n\r\n")
		}
		return size <= maxBytes
	})
	if size > maxBytes || omitted > 0 {
		r.writeError(fmt.Sprintf("ERR the reply exceeds %d bytes; use a pattern that matches fewer topics", maxBytes))
		return
	}
	if h.Cluster != nil {
		slices.Sort(found)
		found = slices.Compact(found)
	}
	r.writeArrayHeader(len(found))
	for _, name := range found {
		r.writeBulk(name)
	}
}

func (b *commandBatch) handlePubsubNumsub(kind Kind) {
	h, names := b.hub, make([]string, 0, len(b.args)-2)
	for _, name := range b.args[2:] {
		names = append(names, string(name))
	}
	b.replyInBackgroundIf(h.Cluster != nil, func(ctx context.Context, r *replyWriter) {
		r.writeArrayHeader(2 * len(names))
		for i, n := range h.subscriberCountsOnAllHubs(ctx, kind, names) {
			r.writeBulk(names[i])
			r.writeInt(n)
		}
	})
}

func (b *commandBatch) handleNumpatOnAllHubs() {
	h, maxBytes := b.hub, b.maxUnsent/4
	b.replyInBackgroundIf(h.Cluster != nil, func(ctx context.Context, r *replyWriter) {
		remote, omitted := h.namesOnOtherHubs(ctx, Pattern, "*", maxBytes)
		r.writeInt(int(h.patterns.count.Load()) + h.countWithoutLocalSubscribers(Pattern, remote) + omitted)
	})
}

// replyInBackgroundIf calls makeReply on the event loop if slow is false. Otherwise, it pauses the connection while
// another goroutine calls makeReply.
func (b *commandBatch) replyInBackgroundIf(slow bool, makeReply func(ctx context.Context, r *replyWriter)) {
	if !slow {
		makeReply(context.Background(), &b.replyWriter)
		return
	}
	b.replyInBackground(func(ctx context.Context, r *replyWriter) error {
		makeReply(ctx, r)
		return nil
	})
}

func (b *commandBatch) handlePubsubHelp() {
	b.writeHelp("PUBSUB",
		"CHANNELS [<pattern>]", "    Return the currently active channels matching a <pattern> (default: '*').",
		"NUMPAT", "    Return number of subscriptions to patterns.",
		"NUMSUB [<channel> ...]", "    Return the number of subscribers for the specified channels, excluding",
		"    pattern subscriptions(default: no channels).",
		"SHARDCHANNELS [<pattern>]",
		"    Return the currently active shard level channels matching a <pattern> (default: '*').",
		"SHARDNUMSUB [<shardchannel> ...]",
		"    Return the number of subscribers for the specified shard level channel(s)")
}
