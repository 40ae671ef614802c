package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/myriad-go/myriad/hub"
)

// A topic is a subject of NATS: its name in tokens, which end behind each dot, colon and slash,
// so that the patterns of a level are a wildcard of NATS. A dot is left out, as the tokens of a
// subject have one between them anyway. A byte that a subject may not have, or that would be
// taken for something else, is % and two digits; a token without any is % alone. A name that
// is too long for a subject has the hash of all of it for its end, and travels in the header.
//
//	news.sport   myriad.t.news.sport
//	chat:7       myriad.t.chat:.7
//	a b..        myriad.t.a%20b.%.%

const (
	topicPrefix   = "myriad.t."
	shardedPrefix = "myriad.s."
	allSuffix     = ">"

	// maxTokens is the most tokens of a name. A separator behind them is a byte like others,
	// but a dot is escaped.
	maxTokens = 16
	// maxSubjectBytes is the most bytes of a name in a subject, with less than half of the 4 KiB that
	// a server of NATS takes as a line. One with more has its beginning, of at most as much
	// less hashSize, as far as tokens are whole.
	maxSubjectBytes = 1024
	hashMark        = "%%"
	hashSize        = len(hashMark) + 2*sha256.Size
)

func subjectPrefix(kind hub.Kind) string {
	if kind == hub.Sharded {
		return shardedPrefix
	}
	return topicPrefix
}

const hexDigits = "0123456789ABCDEF"

// isUnescaped says whether a byte stands for itself in a subject.
func isUnescaped(b byte) bool {
	return b > ' ' && b < 0x7f && b != '.' && b != '*' && b != '>' && b != '%'
}

// escapeTokens writes a name, or the beginning of one, as tokens with dots between them. last is where
// the last token begins.
func escapeTokens(name string) (text string, last int) {
	out := make([]byte, 0, len(name)+16)
	n := 1
	for i := range len(name) {
		b := name[i]
		switch {
		case n < maxTokens && (b == '.' || b == ':' || b == '/'):
			if b != '.' {
				out = append(out, b)
			} else if len(out) == last {
				out = append(out, '%')
			}
			out = append(out, '.')
			last = len(out)
			n++
		case isUnescaped(b):
			out = append(out, b)
		default:
			out = append(out, '%', hexDigits[b>>4], hexDigits[b&15])
		}
	}
	if len(out) == last {
		out = append(out, '%')
	}
	return string(out), last
}

// topicSubject is the subject of a topic. long says that it is not all of the name.
func topicSubject(kind hub.Kind, name string) (subject string, hashed bool) {
	text, _ := escapeTokens(name)
	if len(text) <= maxSubjectBytes {
		return subjectPrefix(kind) + text, false
	}
	text = text[:strings.LastIndexByte(text[:maxSubjectBytes-hashSize], '.')+1]
	sum := sha256.Sum256([]byte(name))
	return subjectPrefix(kind) + text + hashMark + hex.EncodeToString(sum[:]), true
}

// parseTopicSubject is the topic of a subject that is all of its name; ok is false if it is none.
func parseTopicSubject(subject string) (k hub.Kind, name string, ok bool) {
	text, isTopic := strings.CutPrefix(subject, topicPrefix)
	if !isTopic {
		var sharded bool
		if text, sharded = strings.CutPrefix(subject, shardedPrefix); !sharded {
			return 0, "", false
		}
		k = hub.Sharded
	}
	name, ok = unescapeTokens(text)
	return k, name, ok
}

// unescapeTokens gives the name of tokens. Those that a node of another kind has made may be others
// than tokens would write.
func unescapeTokens(text string) (name string, ok bool) {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		switch b := text[i]; {
		case b == '.':
			if i == 0 || text[i-1] != ':' && text[i-1] != '/' {
				out = append(out, '.')
			}
		case b != '%':
			out = append(out, b)
		case i+1 == len(text) || text[i+1] == '.': // a token without bytes
			if i > 0 && text[i-1] != '.' {
				return "", false
			}
		default:
			if i+2 >= len(text) {
				return "", false
			}
			c, err := hex.DecodeString(text[i+1 : i+3])
			if err != nil {
				return "", false
			}
			out = append(out, c[0])
			i += 2
		}
	}
	return string(out), true
}

// patternSubject is a subject with a wildcard for the topics that a pattern matches, and
// mostly others: it has the whole tokens with which they all begin.
func patternSubject(pattern string) string {
	var literal []byte
	whole := true
loop:
	for i := 0; i < len(pattern); i++ {
		b := pattern[i]
		switch b {
		case '*', '?', '[':
			whole = false
			break loop
		case '\\':
			if i+1 < len(pattern) {
				i++
				b = pattern[i]
			}
		}
		literal = append(literal, b)
	}
	if whole {
		subject, _ := topicSubject(hub.Topic, string(literal))
		return subject
	}
	text, last := escapeTokens(string(literal))
	text = text[:last]
	if len(text) > maxSubjectBytes-hashSize {
		text = text[:strings.LastIndexByte(text[:maxSubjectBytes-hashSize], '.')+1]
	}
	return topicPrefix + text + allSuffix
}
