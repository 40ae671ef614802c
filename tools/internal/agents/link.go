package agents

import (
	"crypto/tls"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// DefaultURL is where the NATS server of a coordinator on this machine is, DefaultListen its address.
	DefaultURL    = "nats://127.0.0.1:4222"
	DefaultListen = "127.0.0.1:4222"
	// DefaultSilence is how long one of both sides is not heard of until it is taken for gone.
	DefaultSilence = 5 * time.Second
	// The bounds of it.
	leastSilence, mostSilence = 100 * time.Millisecond, time.Minute

	beatEvery = 5 // of a silence
	// maxLetter is the longest letter, which has a configuration with a message of load.MaxMessage, or a
	// result with its histograms, each in base64 twice.
	maxLetter = 8 << 20
	// maxLetters is how many letters wait to be read.
	maxLetters = 1024

	reconnectEvery = 500 * time.Millisecond
	writeTimeout   = 2 * time.Second
	pingEvery      = 2 * time.Second
	maxPings       = 2
)

// NATS is where a NATS server is, and how it is entered.
type NATS struct {
	// URL has several addresses with commas between them, and can have a user, which is the
	// server's, not the secret.
	URL string
	// Creds is a file with the credentials of a user, "" for none.
	Creds string
	// TLS is what to trust, nil for what the system trusts; it is for URLs of tls.
	TLS *tls.Config
}

// options are those of both sides' connections: what can't be sent at once is not kept.
func (n *NATS) options(name, secret string) []nats.Option {
	all := []nats.Option{
		nats.Name(name), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectEvery), nats.ReconnectJitter(reconnectEvery, reconnectEvery),
		nats.FlusherTimeout(writeTimeout), nats.PingInterval(pingEvery), nats.MaxPingsOutstanding(maxPings),
		nats.IgnoreAuthErrorAbort(),
	}
	if n.Creds != "" {
		all = append(all, nats.UserCredentials(n.Creds))
	}
	if n.TLS != nil {
		all = append(all, nats.Secure(n.TLS))
	}
	if secret != "" && n.Creds == "" {
		all = append(all, nats.Token(token(secret)))
	}
	return all
}

// publish sends a letter.
func publish(c *nats.Conn, subject string, data []byte) error {
	if most := min(c.MaxPayload(), maxLetter); c.IsConnected() && int64(len(data)) > most {
		return fmt.Errorf("agents: a letter of %d bytes; expected at most %d, the server's max_payload", len(data), most)
	}
	return c.Publish(subject, data)
}
