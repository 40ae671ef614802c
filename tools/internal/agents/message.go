package agents

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/myriad-go/myriad/tools/load"
)

// protocol is the version of the message format. Change it whenever the meaning of a message changes.
const protocol = 2

const (
	callSubject  = "myriad.load.call"
	agentSubject = "myriad.load.agent." // followed by the agent's ID
	runSubject   = "myriad.load.run."   // followed by the run's ID
)

const (
	callKind      = "call"
	infoKind      = "info"
	clockKind     = "clock"
	planKind      = "plan"
	heartbeatKind = "heartbeat"
	eventKind     = "event"
	replyKind     = "reply" // reply to a clock or plan request
)

type header struct {
	Protocol int    `json:"protocol"`
	Version  string `json:"version"` // Myriad's version
	Kind     string `json:"kind"`
	From     string `json:"from"` // ID of the run or the agent
}

type message struct {
	header
	Body json.RawMessage `json:"body"`
}

const maxMessage = 8 << 20

var errVersion = errors.New("different version of Myriad; expected the same version on all machines")

func encodeMessage(version, kind, senderID string, body any) ([]byte, error) {
	return json.Marshal(struct {
		header
		Body any `json:"body"`
	}{header{protocol, version, kind, senderID}, body})
}

// decodeMessageHeader parses a message, but does not decode its body. If the sender uses another protocol or another
// wantVersion of Myriad, decodeMessageHeader returns the message and errVersion.
func decodeMessageHeader(data []byte, wantVersion string) (*message, error) {
	if len(data) > maxMessage {
		return nil, fmt.Errorf("message has %d bytes; expected at most %d", len(data), maxMessage)
	}
	m := new(message)
	if err := json.Unmarshal(data, m); err != nil {
		return nil, err
	}
	if id, err := hex.DecodeString(m.From); err != nil || len(id) != idBytes {
		return nil, fmt.Errorf("message has the sender %.64q; expected an ID", m.From)
	}
	if m.Protocol != protocol || m.Version != wantVersion {
		return m, errVersion
	}
	return m, nil
}

// decodeBodyStrictly parses the message's body, and rejects unknown fields and trailing data.
func (m *message) decodeBodyStrictly(body any) error {
	d := json.NewDecoder(bytes.NewReader(m.Body))
	d.DisallowUnknownFields()
	if err := d.Decode(body); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("message has data after its body")
	}
	return nil
}

const idBytes = 16

func newRandomID() string {
	var id [idBytes]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

// call is the message that asks which agents can generate a planned load.
type call struct {
	Targets     []string `json:"targets"`
	Model       string   `json:"model,omitempty"`
	Connections int      `json:"connections"`
	Closing     int      `json:"closing,omitempty"`
}

type agentInfo struct {
	Name string `json:"name"`
	Host string `json:"host"`
	// Machine identifies the agent's machine. Agents with the same Machine share its resources.
	Machine string `json:"machine"`
	CPUs    int    `json:"cpus"`
	// Holds is the number of connections that the machine can carry. Wall names the limit that determines Holds. Most
	// is the agent's own limit (Agent.MaxConnections). 0 means no limit.
	Holds int64  `json:"holds,omitempty"`
	Wall  string `json:"wall,omitempty"`
	Most  int    `json:"most,omitempty"`
	// Refuses is the reason why the agent cannot take part, or "" if it can.
	Refuses string `json:"refuses,omitempty"`
}

type clockRequest struct {
	Silence time.Duration `json:"silence"`
}

// clock contains the times when a clockRequest arrived (Came) and its answer was sent (Left), in Unix nanoseconds.
type clock struct {
	Came int64 `json:"came"`
	Left int64 `json:"left"`
}

type plan struct {
	Config json.RawMessage `json:"config"`
	CA     []byte          `json:"ca,omitempty"` // certificates for TLS to trust, in PEM
}

type planReply struct {
	Refuses string `json:"refuses,omitempty"`
}

// orders is the body of the coordinator's heartbeat to one agent. Times are in Unix nanoseconds by the agent's clock. A
// time of 0 means that the time is not yet set.
type orders struct {
	Start int64 `json:"start,omitempty"` // time to connect
	Begin int64 `json:"begin,omitempty"` // time to send
	// Step numbers the steps from 1. In a step, the agents send at one rate. Rate is the rate to try in a search, in
	// messages per second; 0 ends the search.
	Step   int     `json:"step,omitempty"`
	Rate   float64 `json:"rate,omitempty"`
	Steady bool    `json:"steady,omitempty"`
	// Published is the number of messages of each publisher, or -1 for publishers of a lost agent.
	Published []int64 `json:"published,omitempty"`
	Stop      bool    `json:"stop,omitempty"` // end the run early
	Over      bool    `json:"over,omitempty"` // leave the run
}

type report struct {
	At    int64       `json:"at"` // time by the agent's clock
	Event *load.Event `json:"event,omitempty"`
	// Step is the number of rates that a search has tried. The report is repeated until the next step is ordered.
	Step int `json:"step,omitempty"`
	// Failed is the reason why there is no result, or why the run ended early.
	Failed string `json:"failed,omitempty"`
}

// agentState is the body of an agent's heartbeat.
type agentState struct {
	Connected bool `json:"connected,omitempty"`
}
