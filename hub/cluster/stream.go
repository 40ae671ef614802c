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

// stream is what NATS keeps for hub.Replay. It captures the subjects of these topics, whoever publishes to
// them. One goroutine reads all of it, in its order, and has the hub remember and deliver each message: first
// what was there before, then what comes. What fails is tried again behind the newest message that
// the hub has; so nothing is left out, and nothing comes twice.
type stream struct {
	node     *Node
	js       jetstream.JetStream
	config   jetstream.StreamConfig
	made     bool   // it is as config says
	upTo     uint64 // what was there before
	ready    bool   // the hub has that
	short    int    // how often the newest message was older than one that the hub has
	consumed uint64 // messages of the consumer
}

const (
	streamName = "MYRIAD_HUB"
	// apiTime is how long NATS has for an answer about a stream.
	apiTime = 5 * time.Second
	// A node that is gone has its consumer deleted behind idleTime. One that hears nothing for twice beatTime
	// begins another one.
	idleTime = 30 * time.Second
	beatTime = time.Second
	pullTime = 5 * time.Second
	// unread is the most messages of the stream that are on their way to a node.
	unread = 512
	// streamWait is from one failure to the next try.
	streamWait  = 250 * time.Millisecond
	maxReplicas = 5
	// maxShort is how often a stream that has lost its newest messages is not believed.
	maxShort = 40
	// loadTime is how long what was there before is loaded until it is looked at again.
	loadTime = 10 * time.Second
)

func newStream(n *Node) (*stream, error) {
	js, err := jetstream.New(n.nc)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	bytes, messages, age := n.hub.Replay.Bounds()
	s := &stream{node: n, js: js, config: jetstream.StreamConfig{
		Name: streamName, Subjects: subjectsOf(n.hub.Replay.Topics), MaxBytes: int64(bytes), MaxMsgs: int64(messages), MaxAge: age,
		Duplicates: min(2*keepTime, age), Replicas: n.config.replicas(), Storage: jetstream.FileStorage, Discard: jetstream.DiscardOld,
	}}
	if n.config.Peers == nil && n.nc.IsConnected() {
		ctx, cancel := context.WithTimeout(context.Background(), apiTime)
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

// nameIn is the name of the server whose directory it is, by which the others know it again; a new one has
// the name that is given.
func nameIn(dir, name string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "name")
	known, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return name, os.WriteFile(path, []byte(name), 0o600)
	}
	if err == nil && len(known) == 0 {
		err = fmt.Errorf("%s is empty; expected the name of this node's server", path)
	}
	return string(known), err
}

// subjectsOf are those of topics, without those that others cover: a stream has none twice.
func subjectsOf(topics []string) (subjects []string) {
	var all []string
	for _, topic := range topics {
		all = append(all, subjectOfPattern(topic))
	}
	slices.Sort(all)
	all = slices.Compact(all)
	for _, subject := range all {
		covered := slices.ContainsFunc(all, func(wide string) bool {
			beginning, ok := strings.CutSuffix(wide, everything)
			return ok && wide != subject && strings.HasPrefix(subject, beginning)
		})
		if !covered {
			subjects = append(subjects, subject)
		}
	}
	return subjects
}

// store has the stream take a message.
func (s *stream) store(ctx context.Context, m *outgoing) error {
	ctx, cancel := context.WithTimeout(ctx, keepTry)
	defer cancel()
	msg := &nats.Msg{Subject: m.subject, Data: m.data, Header: nats.Header{}}
	if m.name != "" {
		msg.Header[nameHeader] = []string{m.name}
	}
	_, err := s.js.PublishMsg(ctx, msg, jetstream.WithMsgID(m.number), jetstream.WithExpectStream(streamName), jetstream.WithRetryAttempts(0))
	if err == nil {
		s.node.sent.Add(1)
	}
	return err
}

// run reads until ctx ends.
func (s *stream) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := s.follow(ctx)
		if ctx.Err() == nil && s.node.online.Load() {
			s.node.warned.say("the stream can't be read: %v", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(streamWait):
		}
	}
}

// follow reads until something fails.
func (s *stream) follow(ctx context.Context) error {
	if err := s.find(ctx); err != nil {
		return err
	}
	r := s.node.hub.Replay
	at, _ := r.At()
	started, cancel := context.WithTimeout(ctx, apiTime)
	defer cancel()
	c, err := s.js.CreateConsumer(started, streamName, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: at.Seq + 1, AckPolicy: jetstream.AckNonePolicy,
		MemoryStorage: true, Replicas: 1, InactiveThreshold: idleTime,
	})
	if err != nil {
		return err
	}
	defer s.forget(c)
	messages, err := c.Messages(jetstream.PullMaxMessages(unread), jetstream.PullExpiry(pullTime), jetstream.PullHeartbeat(beatTime), jetstream.WithMessagesErrOnMissingHeartbeat(true))
	if err != nil {
		return err
	}
	defer messages.Stop()
	defer context.AfterFunc(ctx, messages.Stop)()
	if !s.ready { // it is looked at again what there is to load
		defer time.AfterFunc(loadTime, func() { s.stopLoading(messages) }).Stop()
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
func (s *stream) stopLoading(messages jetstream.MessagesContext) {
	if _, ready := s.node.hub.Replay.At(); !ready {
		messages.Stop()
	}
}

// forget deletes a consumer, if that can be done at once.
func (s *stream) forget(c jetstream.Consumer) {
	if !s.node.online.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), beatTime)
	defer cancel()
	_ = s.js.DeleteConsumer(ctx, streamName, c.CachedInfo().Name)
}

// Newest implements hub.Cluster.
func (n *Node) Newest(ctx context.Context) (hub.Position, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTime)
	defer cancel()
	found, err := n.stream.js.Stream(ctx, streamName)
	if err != nil {
		return hub.Position{}, err
	}
	info := found.CachedInfo()
	return hub.Position{Epoch: epochOf(info), Seq: info.State.LastSeq}, nil
}

// epochOf is when a stream was made, which no other one shares.
func epochOf(info *jetstream.StreamInfo) string {
	return strconv.FormatInt(info.Created.UnixNano(), 36)
}

// find makes the stream, or looks at what has become of it.
func (s *stream) find(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, apiTime)
	defer cancel()
	found, err := s.js.Stream(ctx, streamName)
	if errors.Is(err, jetstream.ErrStreamNotFound) || err == nil && !s.made {
		found, err = s.js.CreateOrUpdateStream(ctx, s.config)
	}
	if err != nil {
		return err
	}
	s.made = true
	info := found.CachedInfo()
	epoch := epochOf(info)
	r := s.node.hub.Replay
	first, last := max(info.State.FirstSeq, 1), info.State.LastSeq
	switch at, _ := r.At(); {
	case at.Epoch == epoch && at.Seq > last && s.short < maxShort: // a new leader may not have read all yet
		s.short++
		return fmt.Errorf("the newest message is %d, and was %d", last, at.Seq)
	case at.Epoch == "" || at.Epoch == epoch && at.Seq > last:
		s.upTo, s.ready = last, false
		r.Begin(epoch, first)
	case at.Epoch != epoch: // what it has nobody has got
		s.node.warned.say("the stream is another one")
		s.upTo, s.ready = 0, false
		r.Begin(epoch, first)
	}
	s.short = 0
	if !s.ready && first > s.upTo { // nothing is left of what was there
		s.ready = true
		r.Begin(epoch, first)
		r.Ready(first - 1)
	}
	return nil
}

func (s *stream) deliver(m jetstream.Msg, epoch string) error {
	of, err := m.Metadata()
	if err != nil {
		return err
	}
	if s.consumed++; of.Sequence.Consumer != s.consumed {
		return fmt.Errorf("the consumer's message %d has come behind %d", of.Sequence.Consumer, s.consumed-1)
	}
	seq := of.Sequence.Stream
	_, name, ok := topicOf(m.Subject(), m.Headers())
	if !ok {
		s.node.warned.say("the subject %.100q is no topic of a hub", m.Subject())
	}
	old := !ok || seq <= s.upTo
	s.node.hub.DeliverKept(hub.KeptMessage{At: hub.Position{Epoch: epoch, Seq: seq}, Time: of.Timestamp, Topic: name, Data: m.Data(), Old: old})
	if !old {
		s.node.inbox.received.Add(1)
	}
	if !s.ready && seq >= s.upTo {
		s.ready = true
		s.node.hub.Replay.Ready(seq)
	}
	return nil
}
