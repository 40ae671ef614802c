package engine

// Bits of Conn.state. The last column contains the functions that set a bit and, after |, the functions that clear it.
// OnClosed and ResetFailedDial clear all bits.
//
//	bit              meaning                                       set by | cleared by
//	open             established, not closed                       OnOpen
//	dialled          this process has dialled the connection       OnOpen
//	sourceCounted    counted among the connections of its source   OnOpen, AdmitProxiedPeerOrAppendRefusal
//	ownHandler       userData is a ConnHandler                     SetConnHandler
//	handshaking      a layer's handshake is in progress            OnOpen, RequestLayerInsertion | OnHandshakeDone
//	openPending      a worker must call Opened                     OnOpen, OnHandshakeDone | MakeDeferredHandlerCalls
//	inCall           the handler is being called                   each call | its return
//	neverHeard       the peer has sent nothing yet                 OnOpen, OnHandshakeDone | OnRead
//	inputHeld        buffered input waits until a worker runs,     OnRead, MakeDeferredHandlerCalls | MakeDeferredHandlerCalls
//	                 output is sent, or SetReading is called
//	readPaused       the handler or a relay wants no input         SetReading, forwardToPartner | SetReading
//	overHighWater    unsent output has exceeded HighWater and      Write | OnSent
//	                 not fallen to LowWater since
//	blocked          the kernel does not take output               OnSent, OnSendStarted | OnSent, OnWritable
//	drainedPending   Drained or Missed is pending                  OnSent | MakeDeferredHandlerCalls
//	drainingPending  Draining is pending                           BeginShutdownDrain | MakeDeferredHandlerCalls
//	draining         a shutdown closes the connection when idle    BeginShutdownDrain
//	finalReadPending the connection must be read once more         CheckTimeouts, BeginShutdownDrain,
//	                 before a timeout or a shutdown may close it   SendHeartbeatOrScheduleClose | OnRead,
//	                                                               CloseIfTimedOutAfterEmptyRead
//	relayed          joined with another connection in a relay     enterRelayState
//	peerEOF          the peer sends no more                        OnEOF
//	eofDelivered     the handler or the relay partner was told     MakeDeferredHandlerCalls, forwardEOFToPartner |
//	                 of the peer's EOF                             enterRelayState
//	closingWrite     the write side is shut after all output       CloseWrite
//	yielded          buffered input waits for a later iteration    YieldInput | ClearYield, MakeDeferredHandlerCalls
//	closing          no more input is passed on; see closeReason   CloseWith
//	shut             the write side is shut                        MarkWriteShutAndLingerIfClosing
//	failed           close immediately                             Abort, OnTransportError
//
// The remaining bits count the peer's unanswered heartbeats, up to 255.
//
// While loop.Busy is set in Conn.DriverFlags, a worker owns the connection, including Conn.state.
const (
	open uint32 = 1 << iota
	dialled
	sourceCounted
	ownHandler
	handshaking
	openPending
	inCall
	neverHeard
	inputHeld
	readPaused
	overHighWater
	blocked
	drainedPending
	drainingPending
	draining
	finalReadPending
	relayed
	peerEOF
	eofDelivered
	closingWrite
	closing
	shut
	failed
	yielded

	oneUnanswered  = 1 << 24 // one heartbeat
	unansweredMask = 0xff * oneUnanswered
)

func (c *Conn) is(bits uint32) bool { return c.state&bits != 0 }
