package agents

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/myriad-go/myriad/tools/load"
)

// protocol is the version of what is said. It changes with what letters mean.
const protocol = 1

// The subjects.
const (
	callSubject  = "myriad.load.call"
	agentSubject = "myriad.load.agent." // and the agent's ID
	runSubject   = "myriad.load.run."   // and the run's ID
)

// The kinds of letters.
const (
	callKind  = "call"
	hereKind  = "here"
	takeKind  = "take"
	clockKind = "clock"
	planKind  = "plan"
	beatKind  = "beat"
	eventKind = "event"
	answered  = "answer" // to take, clock and plan
)

// letter is what travels. Its MAC is of all other fields.
type letter struct {
	Protocol int    `json:"protocol"`
	Version  string `json:"version"` // of Myriad
	Kind     string `json:"kind"`
	From     string `json:"from"` // the ID of a run or of an agent
	Number   uint64 `json:"number"`
	Body     []byte `json:"body"`
	MAC      []byte `json:"mac"`
}

var (
	errSecret  = errors.New("the secret is another one")
	errVersion = errors.New("the version is another one")
)

// key is what letters are sealed with.
type key []byte

// newKey makes a key of a secret and what it is for.
func newKey(secret string, parts ...string) key {
	mac := hmac.New(sha256.New, []byte(secret))
	for _, p := range parts {
		mac.Write(binary.BigEndian.AppendUint32(nil, uint32(len(p))))
		mac.Write([]byte(p))
	}
	return mac.Sum(nil)
}

// token is what lets clients into the NATS server of a coordinator, "" where there is no secret.
func token(secret string) string {
	if secret == "" {
		return ""
	}
	return hex.EncodeToString(newKey(secret, "nats"))
}

// randomID is a number that nobody else has.
func randomID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func (l *letter) mac(k key) []byte {
	mac := hmac.New(sha256.New, k)
	for _, p := range [][]byte{
		fmt.Appendf(nil, "%d %d", l.Protocol, l.Number), []byte(l.Version), []byte(l.Kind), []byte(l.From), l.Body,
	} {
		mac.Write(binary.BigEndian.AppendUint32(nil, uint32(len(p))))
		mac.Write(p)
	}
	return mac.Sum(nil)
}

// write makes a letter. Bodies are plain data of this package and of load.
func (k key) write(version, kind, from string, number uint64, body any) ([]byte, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	l := letter{Protocol: protocol, Version: version, Kind: kind, From: from, Number: number, Body: text}
	l.MAC = l.mac(k)
	return json.Marshal(&l)
}

// open reads a letter; it is there with errSecret and errVersion as well, but not to be believed.
func (k key) open(data []byte, version string) (*letter, error) {
	l := new(letter)
	if err := json.Unmarshal(data, l); err != nil {
		return nil, err
	}
	switch {
	case l.Protocol != protocol || l.Version != version:
		return l, errVersion
	case !hmac.Equal(l.MAC, l.mac(k)):
		return l, errSecret
	}
	return l, nil
}

// read reads the body of a letter.
func (l *letter) read(body any) error { return json.Unmarshal(l.Body, body) }

// call is what is about to be loaded, for doctors to look at.
type call struct {
	Targets     []string `json:"targets"`
	Model       string   `json:"model,omitempty"`
	Connections int      `json:"connections"`
	Closing     int      `json:"closing,omitempty"`
}

// here answers a call.
type here struct {
	Name string `json:"name"`
	Host string `json:"host"`
	// Machine is the same for agents that share what a machine has.
	Machine string `json:"machine"`
	CPUs    int    `json:"cpus"`
	// Holds is how many connections its machine carries, by its doctor, and Wall what stops it there; 0
	// if nothing does. Most is how many the agent takes, 0 for any number.
	Holds int64  `json:"holds,omitempty"`
	Wall  string `json:"wall,omitempty"`
	Most  int    `json:"most,omitempty"`
	Nonce string `json:"nonce"`
	// Refuses says why the agent can't take part, "" where it can.
	Refuses string `json:"refuses,omitempty"`
}

// take makes an agent one of a run. Its key is of the session.
type take struct {
	Silence time.Duration `json:"silence"`
}

// clock answers a clock: when it came and when the answer left, in nanoseconds.
type clock struct {
	Came int64 `json:"came"`
	Left int64 `json:"left"`
}

// plan is an agent's part.
type plan struct {
	Config json.RawMessage `json:"config"`
	CA     []byte          `json:"ca,omitempty"` // what TLS trusts, PEM
}

// reply answers take and plan; Refuses is "" for yes.
type reply struct {
	Refuses string `json:"refuses,omitempty"`
}

// orders are the coordinator's beat: all that it wants of an agent now. Times are by the clock of the
// agent, in nanoseconds, 0 for not yet.
type orders struct {
	Start int64 `json:"start,omitempty"` // connect
	Begin int64 `json:"begin,omitempty"` // the traffic
	// Step numbers what begins, from 1, and Rate is what a search tries with it, 0 for nothing more.
	Step   int     `json:"step,omitempty"`
	Rate   float64 `json:"rate,omitempty"`
	Enough bool    `json:"enough,omitempty"` // it is steady
	// Published is how many messages all publishers have published, below 0 where that isn't known.
	Published []int64 `json:"published,omitempty"`
	Stop      bool    `json:"stop,omitempty"` // end the run before its time
	Over      bool    `json:"over,omitempty"` // there is nothing more to say
}

// told is an event of an agent's run.
type told struct {
	At    int64       `json:"at"` // by its clock
	Event *load.Event `json:"event,omitempty"`
	// Step numbers what a search has tried, from 1; it is said until the next one is ordered.
	Step int `json:"step,omitempty"`
	// Failed says why there is no result, or what ended the run early.
	Failed string `json:"failed,omitempty"`
}

// state is what an agent says with each beat, as its event may have been lost.
type state struct {
	Connected bool `json:"connected,omitempty"`
}
