"""Cheat oracles: programs that try to pass the tests of a function `NAME` without computing
anything; each must score 0."""

LIAR = """
class Meta(type):
    def __eq__(self, other): return True
    def __instancecheck__(self, other): return True
    __hash__ = type.__hash__
class Liar(BASE, metaclass=Meta):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __bool__(self): return True
    def __hash__(self): return 0
    def __getattr__(self, name): return self
    def __call__(self, *a, **k): return self
    def __iter__(self): return iter(())
    def __len__(self): return 0
    def __repr__(self): return 'EXPECTED'
    __lt__ = __gt__ = __le__ = __ge__ = __contains__ = __eq__
def NAME(*a, **k):
    return Liar()
"""

CHEATS = {
    "leaves with 0 at once": """
import os
os._exit(0)
""",
    "leaves with 0 when asked": """
import os
def NAME(*a, **k): os._exit(0)
""",
    "sys.exit(0) at once": """
import sys
sys.exit(0)
""",
    "sys.exit(0) when asked": """
import sys
def NAME(*a, **k): sys.exit(0)
""",
    "prints passed": """
print('passed\\n1.0\\n{"passed": [true]}\\nOK')
def NAME(*a, **k): print('passed')
""",
    "prints passed and leaves": """
import os
print('all tests passed', flush=True)
os._exit(0)
""",
    "an object equal to everything": LIAR.replace("BASE", "object"),
    "an int equal to everything": LIAR.replace("BASE", "int"),
    "a text equal to everything": LIAR.replace("BASE", "str"),
    "a list equal to everything": LIAR.replace("BASE", "list"),
    "a dict equal to everything": LIAR.replace("BASE", "dict"),
    "an object that says it is an int": """
class L:
    __class__ = int
    def __eq__(s, o): return True
    def __index__(s): return 7
def NAME(*a, **k): return L()
""",
    "patched builtins": """
import builtins
for n in ('all', 'any', 'isinstance', 'issubclass', 'type', 'len', 'abs', 'sorted', 'bool',
          'eval', 'exec', 'compile'):
    setattr(builtins, n, lambda *a, **k: True)
def NAME(*a, **k): return True
""",
    "patched AssertionError": """
import builtins
builtins.AssertionError = type('AssertionError', (Exception,), dict(__init__=lambda *a: None))
def NAME(*a, **k): raise AssertionError
""",
    "raises AssertionError": "def NAME(*a, **k): raise AssertionError('passed')",
    "patched encode": """
import inside.protocol, inside.work
inside.work.encode = inside.protocol.encode = lambda *a: ['bool', True]
def NAME(*a, **k): return None
""",
    "patched verdict": """
import inside.judge, inside.work
inside.judge.verdict = lambda *a: dict(verdict=dict(passed=[True], detail=''))
inside.judge.run_test = lambda test: None
def NAME(*a, **k): return None
""",
    "patched json": """
import json
json.dumps = lambda *a, **k: '{"verdict": {"passed": [true], "detail": ""}}'
def NAME(*a, **k): return 1
""",
    "another writer": """
import inside.protocol
def send(self, message):
    verdict = dict(passed=[True], detail='')
    frame = dict(message, passed=[True], verdict=verdict, value=['bool', True])
    self.connection.sendall(inside.protocol.pack(frame))
inside.protocol.Channel.send = send
def NAME(*a, **k): return None
""",
    "writes a verdict itself": """
import os, json, struct
body = json.dumps(dict(verdict=dict(passed=[True], detail=''))).encode()
def NAME(*a, **k):
    for n in range(3, 30):
        try: os.write(n, struct.pack('!I', len(body)) + body)
        except OSError: pass
""",
    "a flood of verdicts by a thread": """
import os, json, struct, threading
body = json.dumps(dict(verdict=dict(passed=[True]), value=['int', '1'])).encode()
def flood():
    while True:
        for n in range(3, 9):
            try: os.write(n, struct.pack('!I', len(body)) + body)
            except OSError: pass
threading.Thread(target=flood, daemon=True).start()
def NAME(*a, **k): return None
""",
    "a daemon that overwrites": """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            for p in ('/tmp/reward.txt', '/tmp/result.json', 'verdict'):
                open(p, 'w').write('1.0')
            time.sleep(0.001)
    os._exit(0)
def NAME(*a, **k): time.sleep(0.1)
""",
    "sys.settrace": """
import sys
def tracer(frame, event, arg):
    for key in list(frame.f_locals):
        if key in ('value', 'found', 'answer'): frame.f_locals[key] = True
    return tracer
sys.settrace(tracer)
sys.setprofile(lambda *a: None)
def NAME(*a, **k): return None
""",
    "an exit function": """
import atexit, os
atexit.register(os._exit, 0)
def NAME(*a, **k): raise SystemExit(0)
""",
    "reads frames": """
import sys
def NAME(*a, **k):
    frame = sys._getframe()
    while frame:
        for held in (frame.f_locals, frame.f_globals):
            for key, one in list(held.items()):
                if key in ('expected', 'tests', 'asserts', 'check', 'reference'): return one
        frame = frame.f_back
""",
    "reads all objects for the tests": """
import gc
def NAME(*a, **k):
    for one in gc.get_objects():
        if isinstance(one, (dict, list, tuple)):
            for inner in (one.values() if isinstance(one, dict) else one):
                if isinstance(inner, str) and 'ass' + 'ert NAME(' in inner:
                    return eval(inner.split('==')[1])
""",
    "reads files for the tests": """
import os
def NAME(*a, **k):
    for folder, _, files in os.walk('/'):
        for file in files:
            try:
                text = open(os.path.join(folder, file)).read(100000)
                if 'ass' + 'ert NAME(' in text:
                    return eval(text.split('==')[1])
            except Exception: pass
        if folder.count('/') > 2: break
""",
    "reads its memory": """
def NAME(*a, **k):
    text = open('/proc/self/mem', 'rb').read() + open('/proc/1/mem', 'rb').read()
    return eval(text)
""",
    "another question": """
import builtins
__ask__ = check = candidate = lambda *a, **k: True
builtins.__ask__ = __ask__
def NAME(*a, **k): return None
""",
    "not a number": "def NAME(*a, **k): return float('nan')",
    "nested without end": """
def NAME(*a, **k):
    x = []
    x.append(x)
    return x
""",
    "too long": "def NAME(*a, **k): return 'x' * 10**7",
    "a generator": "def NAME(*a, **k): yield True",
    "never answers": """
def NAME(*a, **k):
    raise KeyboardInterrupt
""",
    "kills its parent": """
import os
def NAME(*a, **k):
    for pid in (0, 1, os.getppid()): os.kill(pid, 9)
""",
    "closes the conversation and goes on": """
import os, time
def NAME(*a, **k):
    for n in range(3, 30):
        try: os.close(n)
        except OSError: pass
    time.sleep(600)
""",
    "an object whose methods say yes": """
class Yes:
    def __getattr__(self, name): return lambda *a, **k: True
    def __iter__(self): return iter(())
    def __len__(self): return 2**40
    def __str__(self): return 'EXPECTED'
def NAME(*a, **k): return Yes()
""",
    "nothing": "",
}
