package cluster

import (
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

// replayStream is the NATS stream that stores the messages of hub.Replay.
type replayStream struct {
	node           *Node
	js             jetstream.JetStream
	config         jetstream.StreamConfig
	configured     bool   // the stream has been created or updated
	loadUpTo       uint64 // sequence number of the last message from before the start
	loaded         bool   // the hub has the message loadUpTo
	truncatedTries int    // how often the stream's newest message was older than the hub's
	consumed       uint64 // messages read from the consumer
}

const (
	streamName = "MYRIAD_HUB"
	// apiTimeout limits a request to the servers. Requests that open the stream have a shorter limit, which grows from
	// minAPITimeout after each failure.
	apiTimeout    = 5 * time.Second
	minAPITimeout = time.Second
	// consumerIdleTimeout is how long a node may be absent before NATS deletes its consumer. consumerHeartbeat is the
	// interval of NATS's heartbeats.
	consumerIdleTimeout = 30 * time.Second
	consumerHeartbeat   = time.Second
	pullExpiry          = 5 * time.Second
	maxPulledMessages   = 512
	streamRetryDelay    = 250 * time.Millisecond
	maxReplicas         = 5
	// maxTruncatedTries limits the tries before the node accepts that the stream has lost its newest messages.
	maxTruncatedTries = 40
	// loadCheckDelay is how long a node loads old messages before it checks whether they still exist.
	loadCheckDelay = 10 * time.Second
)

func newReplayStreamClient(n *Node) (*replayStream, error) {
	js, err := jetstream.New(n.natsConn)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	bytes, messages, age := n.hub.Replay.Bounds()
	s := &replayStream{node: n, js: js, config: jetstream.StreamConfig{
		Name: streamName, Subjects: nonOverlappingSubjects(n.hub.Replay.Topics), MaxBytes: int64(bytes), MaxMsgs: int64(messages), MaxAge: age,
		Duplicates: min(2*publishTimeout, age), Replicas: n.config.Replicas, Storage: jetstream.FileStorage, Discard: jetstream.DiscardOld,
	}}
	if n.config.Peers == nil && n.natsConn.IsConnected() {
		ctx, cancel := context.WithTimeout(context.Background(), apiTimeout)
		defer cancel()
		if _, err := js.AccountInfo(ctx); errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) {
			return nil, fmt.Errorf("cluster: Replay needs JetStream: %w; expected NATS servers with JetStream enabled (nats-server -js)", err)
		}
	}
	return s, nil
}

// loadOrStoreServerName returns the server name stored in dir. If there is none, it stores and returns newName.
func loadOrStoreServerName(dir, newName string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "name")
	known, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return newName, os.WriteFile(path, []byte(newName), 0o600)
	}
	if err == nil && len(known) == 0 {
		err = fmt.Errorf("%s is empty; expected the server name of this node: restore the file from a backup, or delete it to use a new name", path)
	}
	return string(known), err
}

// nonOverlappingSubjects returns the NATS subjects of topics. It omits subjects that another subject's wildcard covers.
func nonOverlappingSubjects(topics []string) (subjects []string) {
	var all []string
	for _, topic := range topics {
		all = append(all, subjectCoveringPattern(topic))
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

func (s *replayStream) publishOnce(ctx context.Context, m *outgoing) error {
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

func (s *replayStream) readWithRetries(ctx context.Context) {
	for timeout := minAPITimeout; ctx.Err() == nil; {
		opened, err := s.openAndReadUntilError(ctx, timeout)
		if opened {
			timeout = minAPITimeout
		} else {
			timeout = min(timeout+timeout/4, apiTimeout)
		}
		if ctx.Err() == nil && s.node.connected.Load() {
			s.node.warnings.warnf("cannot read the stream: %v", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(streamRetryDelay):
		}
	}
}

// openAndReadUntilError opens the replay stream, and then reads messages until an error occurs. timeout limits each of
// the requests that open the stream.
func (s *replayStream) openAndReadUntilError(ctx context.Context, timeout time.Duration) (opened bool, err error) {
	if err := s.openStreamAndResetBufferIfReplaced(ctx, timeout); err != nil {
		return false, err
	}
	r := s.node.hub.Replay
	newest, _ := r.At()
	started, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := s.js.CreateConsumer(started, streamName, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: newest.Seq + 1, AckPolicy: jetstream.AckNonePolicy,
		MemoryStorage: true, Replicas: 1, InactiveThreshold: consumerIdleTimeout,
	})
	if err != nil {
		return false, err
	}
	defer s.deleteConsumerIfConnected(c)
	messages, err := c.Messages(jetstream.PullMaxMessages(maxPulledMessages), jetstream.PullExpiry(pullExpiry), jetstream.PullHeartbeat(consumerHeartbeat), jetstream.WithMessagesErrOnMissingHeartbeat(true))
	if err != nil {
		return false, err
	}
	defer messages.Stop()
	defer context.AfterFunc(ctx, messages.Stop)()
	if !s.loaded {
		defer time.AfterFunc(loadCheckDelay, func() {
			if _, ready := r.At(); !ready {
				messages.Stop() // then open the stream again, because some of the old messages may have expired
			}
		}).Stop()
	}
	for s.consumed = 0; ; {
		m, err := messages.Next()
		if err != nil {
			return true, err
		}
		if err := s.checkOrderAndDeliver(m, newest.Epoch); err != nil {
			return true, err
		}
	}
}

func (s *replayStream) deleteConsumerIfConnected(c jetstream.Consumer) {
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

func streamEpoch(info *jetstream.StreamInfo) string {
	return strconv.FormatInt(info.Created.UnixNano(), 36)
}

// openStreamAndResetBufferIfReplaced creates the stream if necessary, and resets the hub's replay buffer if the stream
// was replaced or has lost its newest messages.
func (s *replayStream) openStreamAndResetBufferIfReplaced(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
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
	case at.Epoch == epoch && at.Seq > last && s.truncatedTries < maxTruncatedTries: // a new leader may still be catching up
		s.truncatedTries++
		return fmt.Errorf("the newest message of the stream is %d, but was %d before", last, at.Seq)
	case at.Epoch == "" || at.Epoch == epoch && at.Seq > last:
		s.loadUpTo, s.loaded = last, false
		r.Begin(epoch, first)
	case at.Epoch != epoch: // the new stream's messages are new to all clients
		s.node.warnings.warnf("the stream was replaced")
		s.loadUpTo, s.loaded = 0, false
		r.Begin(epoch, first)
	}
	s.truncatedTries = 0
	if !s.loaded && first > s.loadUpTo { // all old messages are gone
		s.loaded = true
		r.Begin(epoch, first)
		r.SetLoaded(first - 1)
	}
	return nil
}

func (s *replayStream) checkOrderAndDeliver(m jetstream.Msg, positionEpoch string) error {
	metadata, err := m.Metadata()
	if err != nil {
		return err
	}
	if s.consumed++; metadata.Sequence.Consumer != s.consumed {
		return fmt.Errorf("message %d of the consumer arrived after message %d", metadata.Sequence.Consumer, s.consumed-1)
	}
	seq := metadata.Sequence.Stream
	_, name, ok := topicOfMessage(m.Subject(), m.Headers())
	if !ok {
		s.node.warnings.warnf("subject %.100q is not a topic of a hub", m.Subject())
	}
	old := !ok || seq <= s.loadUpTo
	s.node.hub.KeepAndDeliver(hub.KeptMessage{At: hub.Position{Epoch: positionEpoch, Seq: seq}, Time: metadata.Timestamp, Topic: name, Data: m.Data(), Old: old})
	if !old {
		s.node.inbox.received.Add(1)
	}
	if !s.loaded && seq >= s.loadUpTo {
		s.loaded = true
		s.node.hub.Replay.SetLoaded(seq)
	}
	return nil
}
