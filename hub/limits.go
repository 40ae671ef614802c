package hub

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// Limits bound what clients may ask of a Hub. Connections, and how many come from one address,
// and slow subscribers are bounded by the server: tcp.Limits and
// tcp.Server.SlowConsumer. The zero value of each field means its default; a negative value
// is an error.
type Limits struct {
	// MaxMessage is the most bytes of a message. By the Redis protocol it has less than the
	// server's tcp.Limits.MaxMessage, too, and no message reaches anybody that has, in
	// the form in which it is sent, more than its MaxUnsent. The default is 64 KiB; the most
	// is 1 GiB.
	MaxMessage int
	// MaxTopics is the most topics that have subscribers, and as many patterns, at a time.
	// The default is 10,000,000.
	MaxTopics int
	// MaxName is the most bytes of the name of a topic or pattern. The default is 1,024; the
	// most is 65,536.
	MaxName int
	// MaxSubscriptions is the most topics and patterns that one client is subscribed to.
	// The default is 100,000.
	MaxSubscriptions int
	// MaxSubscribers is the most subscribers of one topic or pattern. The default is 0: no
	// limit but the server's of connections.
	MaxSubscribers int
	// MaxPatternWork is the most work that one publish may have with the patterns of all clients, in
	// units of some 10 ns. It counts the patterns that have to be tried because no part of them that is literal
	// tells them apart from others, for a name of MaxName bytes for which that is most. The default is
	// 100,000, which is some 1 ms.
	MaxPatternWork int
	// MaxPatternCost is the most that the patterns of one client may cost. A pattern costs the work that it
	// adds to that of MaxPatternWork, which is mostly none, and one unit for each 64 bytes that it takes to
	// match it. The patterns of all clients of one address may cost twice as much, and no
	// more than is free of MaxPatternWork, so that a few addresses leave some for others. The default is 25,000.
	MaxPatternCost int
	// MaxFailedLogins is the most failed logins of one connection in a row, and a tenth of those that are free in a
	// minute for one address, or an IPv6 network of 64 bits. Then a client of the Redis protocol waits for a
	// second, and its connection closes; those of WebSockets and HTTP close at once. The right password
	// is taken at any time. The default is 10; the most is 200.
	MaxFailedLogins int
	// PublishRate is the most messages that a client publishes in a second; as many may come
	// at once after a quiet second. Further ones are refused. By HTTP an address is a client,
	// or an IPv6 network of 64 bits. The default is 0: no limit; the most is 1,000,000,000.
	PublishRate int
	// LastValues is the most topics whose newest message is kept, for those who subscribe
	// later, and LastValueBytes the most memory that they take: names and messages as they are allocated, and
	// 104 bytes each. The process takes up to twice that, until memory is collected (GOGC). When there
	// are more, those go that have been neither published to nor subscribed to for the
	// longest. The defaults are 0, which is none, and 64 MiB.
	LastValues, LastValueBytes int
}

func (l Limits) maxMessage() int       { return cmp.Or(l.MaxMessage, 64<<10) }
func (l Limits) maxTopics() int        { return cmp.Or(l.MaxTopics, 10_000_000) }
func (l Limits) maxName() int          { return cmp.Or(l.MaxName, 1024) }
func (l Limits) maxSubscriptions() int { return cmp.Or(l.MaxSubscriptions, 100_000) }
func (l Limits) maxFailedLogins() int  { return cmp.Or(l.MaxFailedLogins, 10) }
func (l Limits) maxPatternWork() int   { return cmp.Or(l.MaxPatternWork, 100_000) }
func (l Limits) maxPatternCost() int   { return cmp.Or(l.MaxPatternCost, 25_000) }
func (l Limits) lastValueBytes() int   { return cmp.Or(l.LastValueBytes, 64<<20) }

// maxFailedLoginsLimit bounds Limits.MaxFailedLogins.
const maxFailedLoginsLimit = 200

// configError is an error that wraps tcp.ErrBadConfig, and reads as its text alone.
type configError struct{ error }

func (configError) Unwrap() error { return tcp.ErrBadConfig }

// validate says what is wrong.
func (l Limits) validate() error {
	for _, n := range []struct {
		name       string
		value, max int
	}{
		{"MaxMessage", l.MaxMessage, 1 << 30},
		{"MaxTopics", l.MaxTopics, math.MaxInt32},
		{"MaxName", l.MaxName, 64 << 10},
		{"MaxSubscriptions", l.MaxSubscriptions, math.MaxInt32},
		{"MaxSubscribers", l.MaxSubscribers, math.MaxInt32},
		{"MaxPatternWork", l.MaxPatternWork, math.MaxInt32},
		{"MaxPatternCost", l.MaxPatternCost, math.MaxInt32},
		{"MaxFailedLogins", l.MaxFailedLogins, maxFailedLoginsLimit},
		{"PublishRate", l.PublishRate, int(time.Second)},
		{"LastValues", l.LastValues, math.MaxInt32},
		{"LastValueBytes", l.LastValueBytes, math.MaxInt},
	} {
		if n.value < 0 || n.value > n.max {
			return configError{fmt.Errorf("hub: Limits.%s is %d; expected 0 (the default) to %d", n.name, n.value, n.max)}
		}
	}
	if l.LastValueBytes > 0 && l.LastValues == 0 {
		return configError{fmt.Errorf("hub: Limits.LastValueBytes is %d without Limits.LastValues; expected how many values are kept", l.LastValueBytes)}
	}
	return nil
}
