package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// Limits of the broker. A packet is limited to maxPacket bytes, a slow subscriber to Limits.MaxUnsent.
const (
	connectTimeout = 10 * time.Second
	maxClientID    = 256  // bytes
	maxTopic       = 1024 // bytes
	maxLevels      = 16
	maxFilters     = 100  // of a client
	maxRetained    = 1000 // messages
)

var (
	errTakenOver      = errors.New("mqtt: another client has connected with this client id")
	errNotConnected   = errors.New("mqtt: expected CONNECT as the first packet, and only once")
	errRefused        = errors.New("mqtt: CONNECT is refused")
	errUnsupportedQoS = errors.New("mqtt: QoS 2 is not supported; expected 0 or 1")
)

// broker is the tcp.MessageHandler of all clients. Each message is a packet. Publications are delivered with QoS 0;
// sessions end with their connections.
//
// mu guards the fields. It is held while a publication is passed to groups, which never blocks.
type broker struct {
	mu       sync.RWMutex
	clients  map[string]tcp.Ref // by client id
	filters  topicNode
	retained map[string]*publication // by topic
}

func newBroker() *broker {
	return &broker{clients: make(map[string]tcp.Ref), retained: make(map[string]*publication)}
}

// client is the Value of a connection after CONNECT. Only calls for the connection use it.
type client struct {
	id        string
	keepAlive time.Duration // 0 for no limit
	filters   map[string]bool
	will      *publication // published unless the client sends DISCONNECT
}

func (b *broker) Opened(c *tcp.Conn) { c.SetDeadline(connectTimeout) }

func (b *broker) Message(c *tcp.Conn, packet []byte) {
	header, _, _ := parseHeader(packet)
	r := &fieldReader{rest: packet[header:]}
	if err := b.handlePacket(c, packet[0]>>4, packet[0]&15, r); err != nil {
		c.CloseWith(err)
	}
}

func (b *broker) handlePacket(c *tcp.Conn, packetType, flags byte, r *fieldReader) error {
	cl, connected := c.Value().(*client)
	if connected == (packetType == typeConnect) {
		return errNotConnected
	}
	if connected {
		c.SetDeadline(cl.keepAlive * 3 / 2)
	}
	wantFlags := byte(0)
	switch packetType {
	case typePublish:
		return b.handlePublish(c, flags, r)
	case typeSubscribe, typeUnsubscribe:
		wantFlags = 2
	}
	if flags != wantFlags {
		return errMalformed
	}
	switch packetType {
	case typeConnect:
		return b.handleConnect(c, r)
	case typeSubscribe, typeUnsubscribe:
		id, filters := r.take(2), r.filters(packetType == typeSubscribe)
		if r.bad || id[0]|id[1] == 0 {
			return errMalformed
		}
		if packetType == typeSubscribe {
			b.subscribe(c, cl, id, filters)
		} else {
			b.unsubscribe(c, cl, id, filters)
		}
	case typePingreq:
		c.Write([]byte{typePingresp << 4, 0})
	case typeDisconnect:
		cl.will = nil
		c.Close()
	default:
		return errMalformed
	}
	return nil
}

func (b *broker) handleConnect(c *tcp.Conn, r *fieldReader) error {
	name, level, flags := r.string(), r.uint8(), r.uint8()
	cl := &client{keepAlive: time.Duration(r.uint16()) * time.Second, filters: make(map[string]bool)}
	switch {
	case r.bad || name != "MQTT":
		return errMalformed
	case level != 4:
		return refuse(c, 1, "protocol level %d; expected 4, for MQTT 3.1.1", level)
	}
	const clean, will, willQoS, willRetain, password, user = 0x02, 0x04, 0x18, 0x20, 0x40, 0x80
	cl.id = r.string()
	if flags&will != 0 {
		cl.will = &publication{topic: r.topic(false), payload: bytes.Clone(r.bytes()), retained: flags&willRetain != 0}
	}
	if flags&user != 0 { // it is not checked
		r.string()
	}
	if flags&password != 0 {
		r.bytes()
	}
	switch {
	case r.bad, len(r.rest) > 0, flags&1 != 0, flags&willQoS == willQoS, flags&will == 0 && flags&(willQoS|willRetain) != 0, flags&(user|password) == password:
		return errMalformed
	case cl.id == "" && flags&clean == 0, len(cl.id) > maxClientID:
		return refuse(c, 2, "client id of %d bytes; expected 1 to %d, or none with a clean session", len(cl.id), maxClientID)
	case cl.id == "":
		cl.id = "\x00" + c.Ref().String() // clients can't send a NUL
	}
	b.mu.Lock()
	old, taken := b.clients[cl.id]
	b.clients[cl.id] = c.Ref()
	b.mu.Unlock()
	if taken {
		_ = old.Do(func(c *tcp.Conn) { c.CloseWith(errTakenOver) }) // an error means that it is closing
	}
	c.SetValue(cl)
	c.SetDeadline(cl.keepAlive * 3 / 2)
	c.Write([]byte{typeConnack << 4, 2, 0, 0})
	return nil
}

func refuse(c *tcp.Conn, code byte, format string, args ...any) error {
	c.Write([]byte{typeConnack << 4, 2, 0, code})
	return fmt.Errorf("%w: "+format, append([]any{errRefused}, args...)...)
}

func (b *broker) handlePublish(c *tcp.Conn, flags byte, r *fieldReader) error {
	p := &publication{topic: r.topic(false), retained: flags&1 != 0}
	qos := flags >> 1 & 3
	var id []byte
	if qos > 0 {
		id = r.take(2)
	}
	switch {
	case r.bad, qos == 3, qos == 0 && flags&8 != 0, qos > 0 && id[0]|id[1] == 0:
		return errMalformed
	case qos == 2:
		return errUnsupportedQoS
	case qos == 1:
		c.Write([]byte{typePuback << 4, 2, id[0], id[1]})
	}
	p.payload = r.rest
	b.publish(p)
	return nil
}

// publish sends p to all subscribers. If p is to be retained, publish copies its payload.
func (b *broker) publish(p *publication) {
	packet := p.encode(false)
	if p.retained {
		b.mu.Lock()
		if len(p.payload) == 0 {
			delete(b.retained, p.topic)
		} else if b.retained[p.topic] != nil || len(b.retained) < maxRetained {
			b.retained[p.topic] = &publication{topic: p.topic, payload: bytes.Clone(p.payload)}
		}
		b.mu.Unlock()
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	b.filters.visitMatches(p.topic, func(g *tcp.Group) { g.Broadcast(packet) })
}

func (b *broker) subscribe(c *tcp.Conn, cl *client, id []byte, filters []string) {
	answer := append(appendHeader(nil, typeSuback<<4, 2+len(filters)), id...)
	var retained []*publication
	b.mu.Lock()
	for _, filter := range filters {
		switch {
		case !cl.filters[filter] && len(cl.filters) == maxFilters:
			answer = append(answer, 0x80) // failure
			continue
		case !cl.filters[filter]:
			cl.filters[filter] = true
			b.filters.add(filter, c.Ref())
		}
		answer = append(answer, 0) // QoS 0
		var match topicNode
		match.add(filter, tcp.Ref{})
		for topic, p := range b.retained {
			match.visitMatches(topic, func(*tcp.Group) { retained = append(retained, p) })
		}
	}
	b.mu.Unlock()
	c.Write(answer)
	for _, p := range retained {
		c.Write(p.encode(true)) // fails for a client that reads too slowly
	}
}

func (b *broker) unsubscribe(c *tcp.Conn, cl *client, id []byte, filters []string) {
	b.mu.Lock()
	for _, filter := range filters {
		b.removeFilterLocked(c, cl, filter)
	}
	b.mu.Unlock()
	c.Write([]byte{typeUnsuback << 4, 2, id[0], id[1]})
}

func (b *broker) removeFilterLocked(c *tcp.Conn, cl *client, filter string) {
	if cl.filters[filter] {
		delete(cl.filters, filter)
		b.filters.remove(strings.Split(filter, "/"), c.Ref())
	}
}

func (b *broker) Closed(c *tcp.Conn, _ error) {
	cl, connected := c.Value().(*client)
	if !connected {
		return
	}
	b.mu.Lock()
	if b.clients[cl.id] == c.Ref() {
		delete(b.clients, cl.id)
	}
	for filter := range cl.filters {
		b.removeFilterLocked(c, cl, filter)
	}
	b.mu.Unlock()
	if cl.will != nil {
		b.publish(cl.will)
	}
}
