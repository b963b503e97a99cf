"""The status page: one HTML file without anything from elsewhere, and its data."""

from __future__ import annotations

import time
from typing import Any

import monograph
from monograph.serve.repository import Repository, ServedModel
from monograph.serve.served import ServedTensors
from monograph.serve.statistics import Histogram

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
)
"""The page may run its own script and ask this server, nothing else."""


def status_data(repository: Repository, started: float) -> dict[str, Any]:
    """Return the data of the page."""
    return {
        "version": monograph.__version__,
        "ready": repository.ready,
        "draining": repository.draining,
        "uptime": round(time.monotonic() - started, 1),
        "models": [
            entry.as_dict() | ({} if entry.model is None else _of(entry.model))
            for entry in repository.entries()
        ],
    }


def _of(model: ServedModel) -> dict[str, Any]:
    s = model.statistics
    found: dict[str, Any] = {
        "pending": model.pending,
        "requests": s.success.count,
        "failures": dict(s.failures),
        "rows": s.rows,
        "runs": s.runs,
        "tokens": s.generated,
        "latency": _histogram(s.latency),
        "memory": dict(model.memory),
    }
    if counts := model.counts:
        found["slots"] = f"{counts['active']} of {counts['slots']}, {counts['waiting']} wait"
        found["first_token"] = _histogram(s.first)
    if isinstance(model, ServedTensors):
        axes = model.axes
        found["shapes"] = [str(p) for p in (*model.inputs, *model.outputs)]
        found["batching"] = model.independence if axes is not None else f"off: {model.unbatched}"
    return found


def _histogram(found: Histogram) -> list[tuple[str, int]]:
    return [(bound, count) for bound, count in zip(found.names(), found.counts, strict=True)]


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Monograph</title>
<meta name="viewport" content="width=device-width">
<style>
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;color:#222;
background:#fff}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin:0}
section{border:1px solid #ccc;border-radius:6px;padding:.8rem 1rem;margin:1rem 0}
.READY{color:#070}.UNAVAILABLE{color:#a00}.LOADING,.UNLOADING{color:#850}
dl{display:grid;grid-template-columns:max-content 1fr;gap:0 1rem;margin:.4rem 0}
dt{color:#666}dd{margin:0;overflow-wrap:anywhere}
.bars{display:flex;align-items:flex-end;height:4rem;gap:2px}
.bars div{flex:1;background:#58a;min-height:1px}
.scale{display:flex;justify-content:space-between;font-size:.75rem;color:#666}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}section{border-color:#444}
.READY{color:#6c6}.UNAVAILABLE{color:#f77}.LOADING,.UNLOADING{color:#fb4}dt,.scale{color:#999}}
</style></head><body>
<h1>Monograph <span id="state">...</span></h1><main id="models"></main>
<script>
let key="";
const el=(name,text,kind)=>{const e=document.createElement(name);e.textContent=text??"";
  if(kind)e.className=kind;return e};
function facts(m){const list=el("dl");
  const add=(n,v)=>{if(v===undefined||v==="")return;list.append(el("dt",n),el("dd",String(v)))};
  add("state",m.state+(m.reason?": "+m.reason:""));add("tensors",(m.shapes||[]).join("; "));
  add("batching",m.batching);add("waiting or running",m.pending);add("requests",m.requests);
  add("failures",Object.entries(m.failures||{}).map(([k,v])=>k+": "+v).join(", "));
  add("rows in runs",m.rows?m.rows+" in "+m.runs:"");add("tokens",m.tokens||"");
  add("slots",m.slots);add("memory",Object.entries(m.memory||{}).filter(([k,v])=>v).map(([k,v])=>
    k+" "+(v/1048576).toFixed(1)+" MiB").join(", "));return list}
function bars(name,found){if(!found||!found.some(b=>b[1]))return [];
  const box=el("div","","bars");const top=Math.max(1,...found.map(b=>b[1]));
  for(const [bound,count] of found){const b=el("div");b.style.height=100*count/top+"%";
    b.title="up to "+bound+" s: "+count;box.append(b)}
  const scale=el("div","","scale");
  scale.append(el("span",name+" "+found[0][0]+" s"),el("span",found.at(-1)[0]));
  return [box,scale]}
async function show(){try{
  const headers=key?{authorization:"Bearer "+key}:{};
  const answer=await fetch("v2/status",{headers});
  if(answer.status===401){key=prompt("API key")||"";if(!key)return;return show()}
  const s=await answer.json();
  document.getElementById("state").textContent=s.version+" - "+(s.draining?"draining":s.ready?
    "ready":"not ready")+", up "+Math.round(s.uptime)+" s";
  document.getElementById("models").replaceChildren(...s.models.map(m=>{const box=el("section");
    const head=el("h2",m.name+" / "+m.version+" ");head.append(el("small",m.state,m.state));
    box.append(head,facts(m),...bars("latency",m.latency),
      ...bars("first token",m.first_token));return box}));
}catch(e){document.getElementById("state").textContent="no answer: "+e}
setTimeout(show,2000)}
show();
</script></body></html>
"""
