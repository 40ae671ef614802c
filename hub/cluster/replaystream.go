package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/myriad-go/myriad/hub"
)

// replayStream is what NATS keeps for hub.Replay. It captures the subjects of these topics, whoever publishes to
// them. One goroutine reads all of it, in its order, and has the hub remember and deliver each message: first
// what was there before, then what comes. What fails is tried again behind the newest message that
// the hub has; so nothing is left out, and nothing comes twice.
type replayStream struct {
	node           *Node
	js             jetstream.JetStream
	config         jetstream.StreamConfig
	configured     bool   // it is as config says
	loadUpTo       uint64 // what was there before
	loaded         bool   // the hub has that
	truncatedTries int    // how often the newest message was older than one that the hub has
	consumed       uint64 // messages of the consumer
}

const (
	streamName = "MYRIAD_HUB"
	// apiTimeout is how long NATS has for an answer about a stream.
	apiTimeout = 5 * time.Second
	// A node that is gone has its consumer deleted behind consumerIdleTimeout. One that hears nothing for twice consumerHeartbeat
	// begins another one.
	consumerIdleTimeout = 30 * time.Second
	consumerHeartbeat   = time.Second
	pullExpiry          = 5 * time.Second
	// maxPulledMessages is the most messages of the stream that are on their way to a node.
	maxPulledMessages = 512
	// streamRetryDelay is from one failure to the next try.
	streamRetryDelay = 250 * time.Millisecond
	maxReplicas      = 5
	// maxTruncatedTries is how often a stream that has lost its newest messages is not believed.
	maxTruncatedTries = 40
	// loadCheckDelay is how long what was there before is loaded until it is looked at again.
	loadCheckDelay = 10 * time.Second
)

func newStream(n *Node) (*replayStream, error) {
	js, err := jetstream.New(n.natsConn)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	bytes, messages, age := n.hub.Replay.Bounds()
	s := &replayStream{node: n, js: js, config: jetstream.StreamConfig{
		Name: streamName, Subjects: streamSubjects(n.hub.Replay.Topics), MaxBytes: int64(bytes), MaxMsgs: int64(messages), MaxAge: age,
		Duplicates: min(2*publishTimeout, age), Replicas: n.config.replicas(), Storage: jetstream.FileStorage, Discard: jetstream.DiscardOld,
	}}
	if n.config.Peers == nil && n.natsConn.IsConnected() {
		ctx, cancel := context.WithTimeout(context.Background(), apiTimeout)
		defer cancel()
		if _, err := js.AccountInfo(ctx); errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) {
			return nil, fmt.Errorf("cluster: messages are to be kept: %w; expected servers of NATS with JetStream (nats-server -js)", err)
		}
	}
	return s, nil
}

func (c Config) replicas() int {
	if c.Peers != nil {
		return cmp.Or(c.Replicas, 3)
	}
	return cmp.Or(c.Replicas, 1)
}

// loadServerName is the name of the server whose directory it is, by which the others know it again; a new one has
// the name that is given.
func loadServerName(dir, newName string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "name")
	known, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return newName, os.WriteFile(path, []byte(newName), 0o600)
	}
	if err == nil && len(known) == 0 {
		err = fmt.Errorf("%s is empty; expected the name of this node's server", path)
	}
	return string(known), err
}

// streamSubjects are those of topics, without those that others cover: a stream has none twice.
func streamSubjects(topics []string) (subjects []string) {
	var all []string
	for _, topic := range topics {
		all = append(all, patternSubject(topic))
	}
	slices.Sort(all)
	all = slices.Compact(all)
	for _, subject := range all {
		covered := slices.ContainsFunc(all, func(wildcard string) bool {
			beginning, ok := strings.CutSuffix(wildcard, allSuffix)
			return ok && wildcard != subject && strings.HasPrefix(subject, beginning)
		})
		if !covered {
			subjects = append(subjects, subject)
		}
	}
	return subjects
}

// publish has the stream take a message.
func (s *replayStream) publish(ctx context.Context, m *outgoing) error {
	ctx, cancel := context.WithTimeout(ctx, publishAttemptTimeout)
	defer cancel()
	msg := &nats.Msg{Subject: m.subject, Data: m.data, Header: nats.Header{}}
	if m.escapedName != "" {
		msg.Header[topicHeader] = []string{m.escapedName}
	}
	_, err := s.js.PublishMsg(ctx, msg, jetstream.WithMsgID(m.id), jetstream.WithExpectStream(streamName), jetstream.WithRetryAttempts(0))
	if err == nil {
		s.node.sent.Add(1)
	}
	return err
}

// readLoop reads until ctx ends.
func (s *replayStream) readLoop(ctx context.Context) {
	for ctx.Err() == nil {
		err := s.readUntilError(ctx)
		if ctx.Err() == nil && s.node.connected.Load() {
			s.node.warnings.warnf("the stream can't be read: %v", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(streamRetryDelay):
		}
	}
}

// readUntilError reads until something fails.
func (s *replayStream) readUntilError(ctx context.Context) error {
	if err := s.ensureStream(ctx); err != nil {
		return err
	}
	r := s.node.hub.Replay
	at, _ := r.At()
	started, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	c, err := s.js.CreateConsumer(started, streamName, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: at.Seq + 1, AckPolicy: jetstream.AckNonePolicy,
		MemoryStorage: true, Replicas: 1, InactiveThreshold: consumerIdleTimeout,
	})
	if err != nil {
		return err
	}
	defer s.deleteConsumer(c)
	messages, err := c.Messages(jetstream.PullMaxMessages(maxPulledMessages), jetstream.PullExpiry(pullExpiry), jetstream.PullHeartbeat(consumerHeartbeat), jetstream.WithMessagesErrOnMissingHeartbeat(true))
	if err != nil {
		return err
	}
	defer messages.Stop()
	defer context.AfterFunc(ctx, messages.Stop)()
	if !s.loaded { // it is looked at again what there is to load
		defer time.AfterFunc(loadCheckDelay, func() { s.stopLoading(messages) }).Stop()
	}
	for s.consumed = 0; ; {
		m, err := messages.Next()
		if err != nil {
			return err
		}
		if err := s.deliver(m, at.Epoch); err != nil {
			return err
		}
	}
}

// stopLoading has the stream looked at again if the hub does not have yet what was there before: that may have
// become too old meanwhile.
func (s *replayStream) stopLoading(messages jetstream.MessagesContext) {
	if _, ready := s.node.hub.Replay.At(); !ready {
		messages.Stop()
	}
}

// deleteConsumer deletes a consumer, if that can be done at once.
func (s *replayStream) deleteConsumer(c jetstream.Consumer) {
	if !s.node.connected.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), consumerHeartbeat)
	defer cancel()
	_ = s.js.DeleteConsumer(ctx, streamName, c.CachedInfo().Name)
}

// Newest implements hub.Cluster.
func (n *Node) Newest(ctx context.Context) (hub.Position, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	found, err := n.stream.js.Stream(ctx, streamName)
	if err != nil {
		return hub.Position{}, err
	}
	info := found.CachedInfo()
	return hub.Position{Epoch: streamEpoch(info), Seq: info.State.LastSeq}, nil
}

// streamEpoch is when a stream was made, which no other one shares.
func streamEpoch(info *jetstream.StreamInfo) string {
	return strconv.FormatInt(info.Created.UnixNano(), 36)
}

// ensureStream makes the stream, or looks at what has become of it.
func (s *replayStream) ensureStream(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	found, err := s.js.Stream(ctx, streamName)
	if errors.Is(err, jetstream.ErrStreamNotFound) || err == nil && !s.configured {
		found, err = s.js.CreateOrUpdateStream(ctx, s.config)
	}
	if err != nil {
		return err
	}
	s.configured = true
	info := found.CachedInfo()
	epoch := streamEpoch(info)
	r := s.node.hub.Replay
	first, last := max(info.State.FirstSeq, 1), info.State.LastSeq
	switch at, _ := r.At(); {
	case at.Epoch == epoch && at.Seq > last && s.truncatedTries < maxTruncatedTries: // a new leader may not have read all yet
		s.truncatedTries++
		return fmt.Errorf("the newest message is %d, and was %d", last, at.Seq)
	case at.Epoch == "" || at.Epoch == epoch && at.Seq > last:
		s.loadUpTo, s.loaded = last, false
		r.Begin(epoch, first)
	case at.Epoch != epoch: // what it has nobody has got
		s.node.warnings.warnf("the stream is another one")
		s.loadUpTo, s.loaded = 0, false
		r.Begin(epoch, first)
	}
	s.truncatedTries = 0
	if !s.loaded && first > s.loadUpTo { // nothing is left of what was there
		s.loaded = true
		r.Begin(epoch, first)
		r.Ready(first - 1)
	}
	return nil
}

func (s *replayStream) deliver(m jetstream.Msg, epoch string) error {
	of, err := m.Metadata()
	if err != nil {
		return err
	}
	if s.consumed++; of.Sequence.Consumer != s.consumed {
		return fmt.Errorf("the consumer's message %d has come behind %d", of.Sequence.Consumer, s.consumed-1)
	}
	seq := of.Sequence.Stream
	_, name, ok := messageTopic(m.Subject(), m.Headers())
	if !ok {
		s.node.warnings.warnf("the subject %.100q is no topic of a hub", m.Subject())
	}
	old := !ok || seq <= s.loadUpTo
	s.node.hub.DeliverKept(hub.KeptMessage{At: hub.Position{Epoch: epoch, Seq: seq}, Time: of.Timestamp, Topic: name, Data: m.Data(), Old: old})
	if !old {
		s.node.inbox.received.Add(1)
	}
	if !s.loaded && seq >= s.loadUpTo {
		s.loaded = true
		s.node.hub.Replay.Ready(seq)
	}
	return nil
}
