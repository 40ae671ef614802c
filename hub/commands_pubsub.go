package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

const noChannelPermissionReply = "NOPERM this user has no permissions to access one of the channels used as arguments"

func (b *commandBatch) handlePublish(kind Kind) {
	if b.subscriptionCount() > 0 { // earlier replies, the client's own message, then the count
		b.flushReplies()
	}
	spentBefore := b.hub.patternIndex.spentWork.Load()
	name, message := string(b.args[1]), b.args[2]
	n, err := 0, b.hub.authorizePublish(b.user, b.countPublishWithinRate, kind, name, message)
	if err == nil {
		n, err = b.hub.publishAuthorized(kind, name, message)
	}
	if err != nil {
		b.writeRefusalReply(err)
		return
	}
	b.work += n/receiversPerWork + int(b.hub.patternIndex.spentWork.Load()-spentBefore)/matchUnitsPerWork
	b.writeInt(n)
}

func (b *commandBatch) writeRefusalReply(err error) {
	if errors.Is(err, errDenied) {
		b.writeError(noChannelPermissionReply)
	} else {
		b.writeError("ERR " + err.Error())
	}
}

// handleSubscribe subscribes to all names. If the user may not subscribe to one of the names, it subscribes to none. If
// a limit is reached, the subscriptions made so far remain.
func (b *commandBatch) handleSubscribe(kind Kind, verb string) {
	names, first := b.args[1:], b.argsAlreadyDone()
	for _, name := range names {
		if first == 0 && !b.user.maySubscribe(kind, string(name)) {
			b.writeRefusalReply(b.hub.countRefusal(errDenied))
			return
		}
	}
	b.confirmVerb = verb
	for i := first; i < len(names); i++ {
		if i > first && b.yieldIfOverBudget(i) {
			return
		}
		b.confirmName = string(names[i])
		if err := b.hub.subscribe(&b.client, b.ref, kind, b.confirmName, b.onSubscribed); err != nil {
			b.writeRefusalReply(err)
			break
		}
		b.work++
		if kind == Pattern { // compiled
			b.work += len(b.confirmName) / patternBytesPerWork
		}
	}
	b.clearArgsDoneAndOrderReplies()
}

// handleUnsubscribe unsubscribes from the given names. Without names, it unsubscribes from all names of the given kind.
func (b *commandBatch) handleUnsubscribe(kind Kind, verb string) {
	names, first := b.args[1:], b.argsAlreadyDone()
	b.confirmVerb = verb
	if len(names) > 0 {
		for i := first; i < len(names); i++ {
			if i > first && b.yieldIfOverBudget(i) {
				return
			}
			b.unsubscribeAndConfirm(kind, string(names[i]))
		}
		b.clearArgsDoneAndOrderReplies()
		return
	}
	all := b.client.subscriptionNames(kind)
	slices.Sort(all)
	for i, name := range all {
		if i > 0 && b.yieldIfOverBudget(first+i) {
			return
		}
		b.unsubscribeAndConfirm(kind, name)
	}
	if first == 0 && len(all) == 0 {
		b.writePushHeader(3)
		b.writeBulk(verb)
		b.writeNull()
		b.writeInt(b.confirmationCount(kind))
	}
	b.clearArgsDoneAndOrderReplies()
}

func (b *commandBatch) unsubscribeAndConfirm(kind Kind, name string) {
	b.hub.unsubscribe(&b.client, b.ref, kind, name)
	b.confirmName = name
	b.writeConfirmation(b.confirmationCount(kind))
	b.work++
}

// confirmSubscription writes a confirmation. The client receives the confirmation before any message of the topic.
func (b *commandBatch) confirmSubscription(subscriptions int) {
	b.writeConfirmation(subscriptions)
	if b.repliesInMessageOrder {
		b.flushReplies()
	}
}

func (b *commandBatch) writeConfirmation(subscriptions int) {
	b.writePushHeader(3)
	b.writeBulk(b.confirmVerb)
	b.writeBulk(b.confirmName)
	b.writeInt(subscriptions)
}

func (b *commandBatch) argsAlreadyDone() int {
	if b.sessionDetails == nil {
		return 0
	}
	return b.argsDone
}

// yieldIfOverBudget checks the batch's budget. If the budget is used up, it suspends the command after the first
// argsDone arguments, and a later batch continues. If stop is true, the caller must return.
func (b *commandBatch) yieldIfOverBudget(argsDone int) (stop bool) {
	if len(b.buf) >= b.flushSize() {
		b.flushReplies()
	}
	if !b.stopped && b.overBudget() {
		b.switchToMessageOrderIfSubscribed()
		b.updateSessionDetails(true, func(d *sessionDetails) { d.argsDone = argsDone })
		b.yieldToOtherConns()
	}
	return b.stopped
}

func (b *commandBatch) clearArgsDoneAndOrderReplies() {
	b.updateSessionDetails(false, func(d *sessionDetails) { d.argsDone = 0 })
	b.switchToMessageOrderIfSubscribed()
}

// switchToMessageOrderIfSubscribed routes further replies through the mailbox if the client has subscriptions. The
// replies then follow messages that are already in the mailbox.
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
	maxBytes := b.maxUnsent / 4
	table := b.hub.tableForKind(kind)
	if h := b.hub; h.Cluster != nil || table.count.Load() > maxTopicsOnLoop {
		b.replyInBackground(func(ctx context.Context, r *replyWriter) error {
			remote, omitted := h.namesOnOtherHubs(ctx, kind, pattern, maxBytes)
			r.writeTopicListOrError(table, pattern, maxBytes, remote, omitted)
			return nil
		})
	} else {
		b.writeTopicListOrError(table, pattern, maxBytes, nil, 0)
	}
}

// maxTopicsOnLoop is the largest number of topics that an event loop searches. Larger searches run in the background.
const maxTopicsOnLoop = 1000

// writeTopicListOrError writes the topics of table that match pattern, together with remoteTopics. If the list exceeds
// maxBytes or remoteOmitted is not 0, it writes an error instead.
func (r *replyWriter) writeTopicListOrError(table *topicTable, pattern string, maxBytes int, remoteTopics []string, remoteOmitted int) {
	var found []string
	size, matcher := 0, compileGlob(pattern)
	table.eachName(func(name string, _ int) bool {
		if matcher.matches(name) {
			found = append(found, name)
			size += len(name) + len("$1024\r\n\r\n")
		}
		return size <= maxBytes
	})
	for _, name := range remoteTopics {
		size += len(name) + len("$1024\r\n\r\n")
	}
	if size > maxBytes || remoteOmitted > 0 {
		r.writeError(fmt.Sprintf("ERR the reply exceeds %d bytes; use a pattern that matches fewer topics", maxBytes))
		return
	}
	if len(remoteTopics) > 0 {
		found = append(found, remoteTopics...)
		slices.Sort(found)
		found = slices.Compact(found)
	}
	r.writeArrayHeader(len(found))
	for _, name := range found {
		r.writeBulk(name)
	}
}

func (b *commandBatch) handlePubsubNumsub(kind Kind) {
	if h := b.hub; h.Cluster != nil {
		names := make([]string, 0, len(b.args)-2)
		for _, name := range b.args[2:] {
			names = append(names, string(name))
		}
		b.replyInBackground(func(ctx context.Context, r *replyWriter) error {
			r.writeArrayHeader(2 * len(names))
			for i, n := range h.subscriberCountsOnAllHubs(ctx, kind, names) {
				r.writeBulk(names[i])
				r.writeInt(n)
			}
			return nil
		})
		return
	}
	table := b.hub.tableForKind(kind)
	b.writeArrayHeader(2 * (len(b.args) - 2))
	for _, name := range b.args[2:] {
		b.writeBulkBytes(name)
		b.writeInt(table.subscriberCount(string(name)))
	}
}

func (b *commandBatch) handleNumpatOnAllHubs() {
	h, maxBytes := b.hub, b.maxUnsent/4
	if h.Cluster == nil {
		b.writeInt(int(h.patterns.count.Load()))
		return
	}
	b.replyInBackground(func(ctx context.Context, r *replyWriter) error {
		remote, omitted := h.namesOnOtherHubs(ctx, Pattern, "*", maxBytes)
		r.writeInt(int(h.patterns.count.Load()) + h.countWithoutLocalSubscribers(Pattern, remote) + omitted)
		return nil
	})
}

func (b *commandBatch) handlePubsubHelp() {
	b.writeHelp("PUBSUB <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
		"CHANNELS [<pattern>]",
		"    Return the currently active channels matching a <pattern> (default: '*').",
		"NUMPAT",
		"    Return number of subscriptions to patterns.",
		"NUMSUB [<channel> ...]",
		"    Return the number of subscribers for the specified channels, excluding",
		"    pattern subscriptions(default: no channels).",
		"SHARDCHANNELS [<pattern>]",
		"    Return the currently active shard level channels matching a <pattern> (default: '*').",
		"SHARDNUMSUB [<shardchannel> ...]",
		"    Return the number of subscribers for the specified shard level channel(s)",
		"HELP",
		"    Prints this help.")
}
